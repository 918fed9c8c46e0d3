# SPDX-License-Identifier: MIT
"""This package says to people and programs what was found."""

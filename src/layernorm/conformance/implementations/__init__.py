# SPDX-License-Identifier: MIT
"""This package wraps installed implementations as targets; a file imports its framework only when one is made."""

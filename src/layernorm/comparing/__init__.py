# SPDX-License-Identifier: MIT
"""This package says whether two models agree, which norm differs first, and which norm turns one array into another."""

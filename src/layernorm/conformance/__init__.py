# SPDX-License-Identifier: MIT
"""This package grades implementations of the norms, property by property, against an exact oracle."""

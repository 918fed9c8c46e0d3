# SPDX-License-Identifier: MIT
"""This package knows whose array it is handed: one file a framework."""

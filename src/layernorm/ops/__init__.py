# SPDX-License-Identifier: MIT
"""This package computes what a NormSpec says: the definition, the layouts, the moments and the backends."""

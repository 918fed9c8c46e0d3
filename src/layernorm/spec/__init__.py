# SPDX-License-Identifier: MIT
"""This package says what a normalization layer is: NormSpec, its variants, the storage types and the errors."""

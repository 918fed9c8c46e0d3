# SPDX-License-Identifier: MIT
"""This file makes `python -m layernorm` the same as `layernorm`."""

from layernorm.cli import main

main()

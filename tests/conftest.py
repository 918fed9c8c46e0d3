# SPDX-License-Identifier: MIT
"""This file prepares every test: importing ml_dtypes teaches NumPy the name bfloat16."""

import ml_dtypes  # noqa: F401

# SPDX-License-Identifier: MIT
"""This file prepares every test: NumPy learns the name bfloat16, and drawn examples are the same at each run."""

import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the name
from hypothesis import settings

# A failure that another run does not show helps nobody; new draws are made by hand, with --hypothesis-profile=default.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

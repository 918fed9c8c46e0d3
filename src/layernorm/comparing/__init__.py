# SPDX-License-Identifier: MIT
"""This package says whether two models agree in their norms, and where they do not, why."""

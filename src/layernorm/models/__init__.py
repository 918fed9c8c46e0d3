# SPDX-License-Identifier: MIT
"""This package finds which norms a model holds: formats decode bytes, families know architectures.

A file becomes a `ModelFile`; `identify` makes of it a `NormRecord` for each norm, says what it could not identify and
why, and what is risky.
"""

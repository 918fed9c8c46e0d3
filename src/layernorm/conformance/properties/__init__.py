# SPDX-License-Identifier: MIT
"""This package holds the properties, one file each; its order is such that the first failure names the fault.

A file has `refuses(target)` (why the target cannot show this property, or None), `cases(target, quick)` and
`measure(target, case)`; its docstring is the page that `layernorm explain` prints. Early properties use inputs on
which one thing alone can go wrong, and tolerances that forgive what a later one is about: `epsilon` runs before
`exact` and forgives imprecision; `exact` runs on rows that feel no eps and whose mean is zero; `offset` moves them.
"""

PROPERTIES: tuple[str, ...] = (
    "output",
    "columns",
    "axes",
    "determinism",
    "rows",
    "neighbours",
    "layout",
    "spread",
    "centering",
    "affine",
    "epsilon",
    "exact",
    "rounding",
    "epsilon-digits",
    "offset",
    "scale",
    "patterns",
    "constant",
    "finite",
    "subnormal",
    "nonfinite",
    "empty",
    "in-place",
    "input-gradient",
    "parameter-gradients",
    "constant-gradients",
    "wrong-calls",
)

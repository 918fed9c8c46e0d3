# SPDX-License-Identifier: MIT
"""This package holds the properties, one file each; its order is such that the first failure names the fault.

A file has `refuses(target)` (why the target cannot show this property, or None), `cases(target, quick)` and
`measure(target, case)`; its docstring is the page that `layernorm explain` prints.
"""

PROPERTIES: tuple[str, ...] = ()

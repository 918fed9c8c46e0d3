# SPDX-License-Identifier: MIT
"""This file checks that gammas, betas and stored statistics have the same values.

What it checks
    Every value, within the rounding of the coarser file; gamma as offset + w, a stored variance as variance + epsilon.

Why it matters
    Everything else may agree, and the numbers be those of another checkpoint, or the ones a layer begins with.

Example
    A key that had no mapping left 27 of 48 norms at gamma = 1, and nothing was raised.

What to do
    Compare the two files' sources; load the tensor that is named again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from layernorm.comparing.checks.parameter_swapped import apart_by_one, beta_owner, owner
from layernorm.comparing.compared import Compared, finding
from layernorm.comparing.epsilon import compensated
from layernorm.comparing.pairing import Pair
from layernorm.comparing.parameters import Parameter, apart, beta_of, both, same, stored, transposed
from layernorm.models.norm_record import Finding

FIELDS = {"gamma": ("gamma", "scale_offset"), "beta": ("beta",), "mean": ("mean",), "variance": ("variance", "eps")}


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each parameter of a pair that has other values for no reason known."""
    for pair, effect in compared.each():
        for name, (a, b) in _held(compared, pair):
            far = apart(a, b.values, b)
            with np.errstate(invalid="ignore"):
                off = np.nan_to_num(np.abs(a.values - b.values), nan=np.inf)  # a NaN on one side
            at = int(np.argmax(np.where(far, off, -1.0)))
            first, second = float(a.values.flat[at]), float(b.values.flat[at])
            constant = " throughout" if np.all(b.values == b.values.flat[0]) else ""
            yield finding(
                "parameter-value", pair, effect, effect.of(*FIELDS[name]),
                f"{name}[{at}] is {first:.6g} in A and {second:.6g}{constant} in B; "
                f"{np.count_nonzero(far)} of {far.size} values differ.",
                f"load B's {name} again.", a=first, b=second,
            )  # fmt: skip


def _held(compared: Compared, pair: Pair) -> Iterator[tuple[str, tuple[Parameter, Parameter]]]:
    gammas = both(pair)
    told = gammas and (same(*gammas) or transposed(*gammas) or apart_by_one(*gammas))
    if gammas and not told and owner(compared, pair) is None:
        yield "gamma", gammas
    betas = beta_of(pair.a), beta_of(pair.b)
    if betas[0] is not None and betas[1] is not None and betas[0].values.shape == betas[1].values.shape:
        exchanged = owner(compared, pair) is not None or beta_owner(compared, pair) is not None
        if not same(betas[0], betas[1]) and not transposed(betas[0], betas[1]) and not exchanged:
            yield "beta", (betas[0], betas[1])
    for name in ("mean", "variance"):
        held = stored(pair.a, name), stored(pair.b, name)
        if held[0] is None or held[1] is None or same(held[0], held[1]):
            continue
        if name == "variance" and compensated(pair):
            continue
        if held[0].values.shape == held[1].values.shape:
            yield name, (held[0], held[1])

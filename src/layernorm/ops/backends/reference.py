# SPDX-License-Identifier: MIT
"""This file runs the definition as a backend: every spec, in float64, on one thread."""

import numpy as np

from layernorm.ops import reference
from layernorm.ops.layout import Array, Parameter
from layernorm.spec.norm_spec import NormSpec

NAME = "reference"


def refuses(spec: NormSpec, dtype: str) -> str | None:
    """Say why this backend cannot run a spec: it always can."""
    return None


def threads_for(x: Array) -> int:
    """Say how many threads an array of this size is given."""
    return 1


def forward(
    x: Array,
    spec: NormSpec,
    gamma: Parameter | None,
    beta: Parameter | None,
    out: Array,
    stats: Array | None,
    given: tuple[Array, Array] | None = None,
    update: float | None = None,
) -> None:
    """Normalize x: (rows, columns) into out; stats: (3, rows) receives m, δ and r."""
    y, row = reference.forward(x, spec, gamma, beta, given, update)
    out[...] = y
    if stats is not None:
        with np.errstate(all="ignore"):
            mean = row.mean if spec.centered else np.zeros_like(row.mean)
            residue = row.residue if spec.centered else np.zeros_like(row.mean)
            nearest = (mean + residue).astype(stats.dtype).astype(np.float64)
            stats[0] = nearest[:, 0]
            stats[1] = ((mean - nearest) + residue)[:, 0]
            stats[2] = (1 / row.denominator / row.scale)[:, 0]


def backward(
    dy: Array,
    x: Array,
    spec: NormSpec,
    gamma: Parameter | None,
    stats: Array | None,
    dx: Array,
    sums: bool,
    given: tuple[Array, Array] | None = None,
    update: float | None = None,
) -> tuple[Array, Array] | None:
    """Write dx, and give dγ and dβ summed over all rows, each (columns,) float64, if `sums`.

    Without stats they are taken anew from x.
    """
    row = None if stats is None else reference.row_of(x, spec, stats)
    slopes, xhat = reference.backward(dy, x, spec, gamma, row, given, update)
    dx[...] = reference.rounded(slopes, dx.dtype.name).astype(dx.dtype)
    if not sums:
        return None
    dy = dy.astype(np.float64)
    # transposed, because NumPy adds pairwise only along the fast axis
    return np.ascontiguousarray((dy * xhat).T).sum(axis=-1), np.ascontiguousarray(dy.T).sum(axis=-1)

# SPDX-License-Identifier: MIT
"""This file writes the arrays of a report's worst case, so that anyone can work them out for themselves."""

from pathlib import Path

import numpy as np

from layernorm.conformance.conform import Report
from layernorm.conformance.inputs import Array, Case
from layernorm.conformance.measure import exact_of, parameters_of, scale_of
from layernorm.conformance.oracle import DD, backward, error, ulp
from layernorm.conformance.targets import Target
from layernorm.spec.errors import ArgumentError


def save_worst(found: Report, path: Path) -> str:
    """Write the arrays of the worst case as .npz, and say which row of which is the worst.

    The file holds the worst row of x, y and exact, with gamma and beta. Where the worst property is about gradients, it
    holds all rows of x, dy, dx and exact_dx, with gamma, and dgamma and dbeta, given and exact, which are sums over
    rows. What is exact is float64; bfloat16 is written as float32, which holds it. And case, row, property and eps.

    Raises:
        ArgumentError: nothing was measured.
    """
    worst = found.worst
    if worst is None or worst.at is None:
        raise ArgumentError(f"no case of {found.target.name} was measured, so there is none to save.", str(path))
    case = Case.parse(worst.at)
    of_gradients = "gradient" in worst.property
    with np.errstate(all="ignore"):
        arrays, row = (_gradients if of_gradients else _outputs)(found.target, case)
    if not of_gradients:  # dgamma and dbeta are sums over all rows
        arrays = {n: a[row : row + 1] if a.ndim == 2 else a for n, a in arrays.items()}
    kept = {n: a.astype(np.float32) if a.dtype.name == "bfloat16" else a for n, a in arrays.items()}
    said = {"case": worst.at, "row": row, "property": worst.property, "eps": found.target.eps}
    np.savez(path, allow_pickle=False, **kept, **{n: np.array(v) for n, v in said.items()})
    return f"row {row} of {worst.at} ({worst.property})"


def _outputs(target: Target, case: Case) -> tuple[dict[str, Array], int]:
    gamma, beta = parameters_of(target, case)
    y, exact = np.asarray(target.forward(case.x, gamma, beta)), exact_of(target, case.x, gamma, beta).y
    return _present(x=case.x, gamma=gamma, beta=beta, y=y, exact=exact.hi), _worst_row(y, exact, case)


def _gradients(target: Target, case: Case) -> tuple[dict[str, Array], int]:
    assert target.backward is not None
    gamma, _ = parameters_of(target, case)
    dx, dgamma, dbeta = target.backward(case.dy, case.x, gamma)
    scale = scale_of(target, gamma)
    exact_dx, exact_dgamma, exact_dbeta, *_ = backward(case.dy, case.x, scale, target.eps, target.centered)
    arrays = _present(
        x=case.x, gamma=gamma, dy=case.dy, dx=dx, exact_dx=exact_dx.hi,
        dgamma=dgamma, exact_dgamma=exact_dgamma.hi, dbeta=dbeta, exact_dbeta=exact_dbeta.hi,
    )  # fmt: skip
    return arrays, _worst_row(dx, exact_dx, case)


def _present(**arrays: Array | None) -> dict[str, Array]:
    return {name: value for name, value in arrays.items() if value is not None}


def _worst_row(given: Array, exact: DD, case: Case) -> int:
    if given.shape != exact.hi.shape:
        return 0
    off = error(given, exact) / ulp(exact.hi, case.dtype)
    return int(np.argmax(np.where(np.isnan(off), np.inf, off).max(axis=1)))

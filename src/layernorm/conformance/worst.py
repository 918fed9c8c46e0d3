# SPDX-License-Identifier: MIT
"""This file writes the arrays of a report's worst case, so that anyone can work them out for themselves."""

from pathlib import Path

import numpy as np

from layernorm.conformance.conform import Report
from layernorm.conformance.grade import QUIET
from layernorm.conformance.inputs import Array, Case
from layernorm.conformance.measure import exact_of, parameters_of, scale_of
from layernorm.conformance.oracle import DD, backward, error, ulp
from layernorm.conformance.targets import Target, told
from layernorm.spec.errors import ArgumentError
from layernorm.spec.files import check_place, replacing


def save_worst(found: Report, path: Path) -> str:
    """Write the arrays of the worst case as .npz, and say which row of which is the worst.

    The file holds the worst row of x, y and exact, with gamma and beta. Where the worst property is about gradients, it
    holds all rows of x, dy, dx and exact_dx, with gamma, and dgamma and dbeta, given and exact, which are sums over
    rows. What is exact is float64; bfloat16 is written as float32, which holds it. And case, row, property and eps.

    Raises:
        ArgumentError: nothing was measured, the target gives nothing that can be saved, or the file cannot be written.
    """
    checked_path(path)
    worst = found.worst
    if worst is None or worst.at is None:
        raise ArgumentError(f"no case of {found.target.name} was measured, so there is none to save.", str(path))
    case = Case.parse(worst.at)
    of_gradients = "gradient" in worst.property
    try:
        with QUIET, np.errstate(all="ignore"):
            arrays, row = (_gradients if of_gradients else _outputs)(found.target, case)
    except KeyboardInterrupt:
        raise
    except BaseException as fault:
        raise ArgumentError(
            f"{worst.at} cannot be saved, for {found.target.name} gives no arrays of numbers to compare: {told(fault)}",
            str(path),
        ) from fault
    if not of_gradients:  # dgamma and dbeta are sums over all rows
        arrays = {n: a[row : row + 1] if a.ndim == 2 else a for n, a in arrays.items()}
    kept = {n: a.astype(np.float32) if a.dtype.name == "bfloat16" else a for n, a in arrays.items()}
    said = {"case": worst.at, "row": row, "property": worst.property, "eps": found.target.eps}
    with replacing(path) as aside, aside.open("xb") as file:
        np.savez(file, allow_pickle=False, **(kept | {n: np.array(v) for n, v in said.items()}))
    return f"row {row} of {worst.at} ({worst.property})"


def checked_path(path: Path) -> None:
    """Refuse a path at which no file of arrays can be made.

    Raises:
        ArgumentError: it does not end in .npz, or no file can be put there.
    """
    if path.suffix != ".npz":
        raise ArgumentError(f"{path}: arrays are saved as .npz; give a name that ends in it.", str(path))
    check_place(path)


def _outputs(target: Target, case: Case) -> tuple[dict[str, Array], int]:
    gamma, beta = parameters_of(target, case)
    y, exact = _numbers(target.forward(case.x, gamma, beta)), exact_of(target, case.x, gamma, beta).y
    return _present(x=case.x, gamma=gamma, beta=beta, y=y, exact=exact.hi), _worst_row(y, exact, case)


def _gradients(target: Target, case: Case) -> tuple[dict[str, Array], int]:
    assert target.backward is not None
    gamma, _ = parameters_of(target, case)
    first, *others = target.backward(case.dy, case.x, gamma)
    dx, (dgamma, dbeta) = _numbers(first), (None if g is None else _numbers(g) for g in others)
    scale = scale_of(target, gamma)
    exact_dx, exact_dgamma, exact_dbeta, *_ = backward(case.dy, case.x, scale, target.eps, target.centered)
    arrays = _present(
        x=case.x, gamma=gamma, dy=case.dy, dx=dx, exact_dx=exact_dx.hi,
        dgamma=dgamma, exact_dgamma=exact_dgamma.hi, dbeta=dbeta, exact_dbeta=exact_dbeta.hi,
    )  # fmt: skip
    return arrays, _worst_row(dx, exact_dx, case)


def _numbers(given: object) -> Array:
    found = np.asarray(given)
    if found.dtype.name != "bfloat16" and found.dtype.kind not in "biufc":
        raise TypeError(f"it gave a {type(given).__name__} of {found.dtype}")
    return found


def _present(**arrays: Array | None) -> dict[str, Array]:
    return {name: value for name, value in arrays.items() if value is not None}


def _worst_row(given: Array, exact: DD, case: Case) -> int:
    if given.shape != exact.hi.shape or not given.size:
        return 0
    off = error(given, exact) / ulp(exact.hi, case.dtype)
    return int(np.argmax(np.where(np.isnan(off), np.inf, off).max(axis=1)))

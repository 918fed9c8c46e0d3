# SPDX-License-Identifier: MIT
"""A 16-bit output is rounded once, to the nearest, at the very end.

What it checks
    float16 and bfloat16 rows with γ and β. The error of each element must stay below half an ulp of the type at y and
    the float32 bound of `exact`; how many elements are the 16-bit number nearest to the exact answer is reported.

Why it matters
    Rounding x̂ to 16 bits before γ multiplies it, as some runtimes do and others do not, changes a quarter of all
    elements by an ulp. It is the whole difference between two servers that generate different text from one model.

Example
    float16, x̂ = 0.3, γ = 3. Right is 0.9, whose nearest float16 is 0.8999. x̂ rounded first is 0.30005, times 3 that
    is 0.90015, which rounds to 0.9004: the next float16 up. Of normal values 26 percent change.

What to do
    Compute in float32 and cast after the shift. Mean, variance or 1/σ kept in the 16-bit type show here too: what that
    does to ordinary rows of the type stays below an ulp. If the model's definition rounds before γ (Llama's does), say
    so in the spec: `cast_before_scale=True`; it is then allowed for.
"""

from collections.abc import Iterator

import numpy as np

from layernorm.conformance.inputs import Affine, Case
from layernorm.conformance.measure import NARROW, Measured, against_exact, exact_of, parameters_of, plain_case
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Tell whether it has 16-bit types."""
    return None if set(target.dtypes) & set(NARROW) else "it takes no 16-bit type"


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give the 16-bit types, with and without parameters."""
    kinds: tuple[Affine, ...] = ("none", "gamma", "both")
    for dtype in (d for d in target.dtypes if d in NARROW):
        for width in (64, 768) if quick else (7, 64, 768, 4096):
            for affine in kinds:
                yield plain_case(target, width, dtype, rows=8, pattern="balanced", affine=affine)


def measure(target: Target, case: Case) -> Measured:
    """Compare with the exact answer, without an ulp to spare."""
    found = against_exact(target, case, slack=0.0)
    parameters = parameters_of(target, case)
    nearest = exact_of(target, case.x, *parameters).y.to_float().astype(case.dtype)
    share = float(np.mean(target.forward(case.x, *parameters) == nearest))
    return Measured(found.share, found.ulp, f"{100 * share:.2f} % of the elements are the nearest number")

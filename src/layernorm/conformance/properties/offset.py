# SPDX-License-Identifier: MIT
"""Rows far from zero are as right as rows around it.

What it checks
    Normal rows moved by 0, 1, 100 … up to 1e7 times their spread in float32 (1e15 in float64, 1e3 in float16, 1e2 in
    bfloat16: as far as the type still tells their values apart), held to the full bound of `exact`.

Why it matters
    The variance as mean(x²) − mean(x)² subtracts two numbers that agree in their first digits: at an offset of 1e4
    float32 keeps none of it, and the result may even be negative. A mean that is rounded to float32 is off by half an
    ulp of the offset, which the spread then sees. Residual streams of deep models do drift far off zero.

Example
    The float32 row 10000, 10001, 10002, 10003 has variance 1.25. mean(x²) and mean(x)² both come out as 1.0003e8, so
    that their difference is 0 and the answer as large as eps lets it be.

What to do
    Two passes: first m = mean(x), then δ = mean(x − m) and var = mean((x − m)²) − δ², and y from (x − m) − δ. The
    term δ is what rounding m missed; without it the error grows with the offset, only later.
"""

from collections.abc import Iterator

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, against_exact, plain_case
from layernorm.conformance.targets import Target

FURTHEST = {"float16": 1e3, "bfloat16": 1e2, "float32": 1e7, "float64": 1e15}


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give offsets as far as each type goes."""
    powers = (0, 2, 4, 7, 12, 15) if quick else range(16)
    for dtype in target.dtypes:
        for width in (2, 100, 768) if quick else (2, 3, 17, 100, 768, 1025, 5000):
            # a short row at the furthest offset may by chance be constant
            furthest = FURTHEST[dtype] / (1.0 if width >= 17 else 100.0)
            yield plain_case(target, width, dtype)
            for offset in (10.0**p for p in powers if 10.0**p <= furthest):
                yield plain_case(target, width, dtype, offset=offset if width % 2 else -offset)


def measure(target: Target, case: Case) -> Measured:
    """Compare with the exact answer."""
    return against_exact(target, case)

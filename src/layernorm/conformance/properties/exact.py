# SPDX-License-Identifier: MIT
"""Ordinary rows are right to the last digits.

What it checks
    Rows of mean zero that are so large that eps does not show, and whose variance takes more than 8 bits to write, at
    widths from 2 to 65 536, in every type, with γ and β in half of the cases. The error of each element must stay
    below 4u·(|γ·x̂| + |γ|·ρ + |β|), where u is half an ulp of 1 in float32 (in float64 for float64) and
    ρ = σ/√(σ² + eps). For 16-bit types half an ulp of the output comes on top, and one ulp more: what rounding twice
    does is for `rounding` to show, without β, near whose cancelling it may be any number of ulp.

Why it matters
    These rows cancel nothing, overflow nothing and feel no eps. If they are wrong, the arithmetic itself is: statistics
    kept in 16 bits, an approximate root, or a sum of 65 536 terms in one chain.

Example
    Squares of 65 536 values added in one float32 chain: 81 ulp at the worst, 51 in the middle. The same in blocks of
    about a thousand, added in float64: 0.5 at the worst.

What to do
    Wrong at every width: look for a cast of mean, variance or 1/σ, or for a fast reciprocal root without its Newton
    step. Worse with width: add in blocks of about a thousand and add the blocks in a wider type.
"""

from collections.abc import Iterator

from layernorm.conformance.inputs import Affine, Case, clear_of
from layernorm.conformance.measure import NARROW, Measured, against_exact, plain_type
from layernorm.conformance.targets import Target

WIDTHS = (
    2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 129, 256, 511, 513, 768, 1000, 1023, 1025, 1536,
    2048, 2049, 3072, 4096, 5120, 8192, 12288, 16384, 32768, 65536,
)  # fmt: skip
QUICK = (2, 3, 8, 17, 64, 100, 768, 1025, 4096, 65536)


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give all widths in all types."""
    for dtype in target.dtypes:
        scale = 1.37 * clear_of(target.eps, dtype)
        both: Affine = "gamma" if dtype in NARROW else "both"
        for width in QUICK if quick else WIDTHS:
            for affine in ("none", both):
                if quick and width > 5000 and (affine != "none" or dtype != plain_type(target)):
                    continue  # the longest rows take most of the time, and are about the length of the sum alone
                rows = 8 if width <= 1100 else 2
                yield Case(width, rows, dtype, "balanced", scale=scale, affine=affine)


def measure(target: Target, case: Case) -> Measured:
    """Compare with the exact answer."""
    return against_exact(target, case)

# SPDX-License-Identifier: MIT
"""This file makes the inputs that norms are graded on; each is known by a name from which it can be made again."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

import ml_dtypes
import numpy as np
import numpy.typing as npt

from layernorm.spec.errors import ArgumentError

Array = npt.NDArray[Any]


Affine = Literal["none", "gamma", "beta", "both"]

# How many bits of margin a row's variance gives so that no place or multiple of eps shows: what eps adds to √eps·2**k
# is 2**-2k of it, but where eps is added to the deviation √eps·2**-k, hence the 20 for float32's 24 bits.
CLEAR = {"float16": 13, "bfloat16": 13, "float32": 20, "float64": 52}


def clear_of(eps: float, dtype: str) -> float:
    """Give a scale, a power of two, at which rows of unit variance do not feel eps.

    >>> clear_of(1e-5, "float32")
    4096.0
    """
    return 2.0 ** math.ceil(math.log2(eps) / 2 + CLEAR[dtype]) if eps else 1.0


def _balanced(random: np.random.Generator, rows: int, width: int) -> Array:
    # mean 0 to the last digits, so that no formula for the variance cancels; a pair of normals may nearly be constant
    x = random.standard_normal((rows, width))
    x -= x.mean(axis=1, keepdims=True)
    return np.asarray(x / np.maximum(np.sqrt(np.mean(x * x, axis=1, keepdims=True)), 1e-300))


def _mixed(random: np.random.Generator, rows: int, width: int) -> Array:
    spread = 10.0 ** random.uniform(-1, 1, (rows, 1))
    return np.asarray(spread * (random.standard_normal((rows, width)) + random.uniform(-3, 3, (rows, 1))))


def _outlier(random: np.random.Generator, rows: int, width: int) -> Array:
    x = random.standard_normal((rows, width))
    x[:, width // 2] = 1000.0
    return x


def _step(random: np.random.Generator, rows: int, width: int) -> Array:
    # the first 32 columns, from which a mean may be guessed, are nothing like the rest
    x = random.standard_normal((rows, width))
    x[:, :32] += 100.0
    return x


# The values that are no numbers to average, by the name of a case's form.
NOT_FINITE = {"nan": np.nan, "inf": np.inf, "minus-inf": -np.inf}

# What a row looks like before it is scaled and moved: x = scale · (offset + pattern).
PATTERNS: dict[str, Callable[[np.random.Generator, int, int], Array]] = {
    "normal": lambda random, rows, width: random.standard_normal((rows, width)),
    "balanced": _balanced,
    "mixed": _mixed,
    "constant": lambda random, rows, width: np.zeros((rows, width)),
    "bits": lambda random, rows, width: random.integers(0, 2, (rows, width)).astype(np.float64),
    "ramp": lambda random, rows, width: np.tile(np.linspace(-1, 1, width), (rows, 1)),
    "outlier": _outlier,
    "step": _step,
    "quantized": lambda random, rows, width: np.round(4 * random.standard_normal((rows, width))) / 4,
    "largest": lambda random, rows, width: random.uniform(-1, 1, (rows, width)),
    "whole": lambda random, rows, width: random.integers(-3, 4, (rows, width)).astype(np.float64),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One input by name: `str(case)` says it, `Case.parse` makes it again; `x`, `gamma`, `beta`, `dy` are its arrays.

    For the pattern `largest` the scale is in units of the type's largest number, for `whole` in those of its smallest.
    `form` is a word of the property's own: the way in which it hands x over, or what it does to it.

    >>> case = Case(768, offset=1e4, seed=3)
    >>> str(case)
    'normal d=768 rows=4 float32 offset=10000 scale=1 seed=3'
    >>> Case.parse(str(case)) == case
    True
    """

    width: int
    rows: int = 4
    dtype: str = "float32"
    pattern: str = "normal"
    offset: float = 0.0
    scale: float = 1.0
    affine: Affine = "none"
    seed: int = 0
    form: str = ""

    def __str__(self) -> str:
        said = f"{self.pattern} d={self.width} rows={self.rows} {self.dtype} offset={_shortest(self.offset)}"
        said += f" scale={_shortest(self.scale)}{'' if self.affine == 'none' else f' affine={self.affine}'}"
        return f"{said} seed={self.seed}{f' form={self.form}' if self.form else ''}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Make the case that has this name.

        Raises:
            ArgumentError: it is no name of a case.
        """
        found = re.fullmatch(
            r"(\w+) d=(\d+) rows=(\d+) (\w+) offset=(\S+) scale=(\S+)(?: affine=(gamma|beta|both))? seed=(\d+)"
            r"(?: form=(\S+))?",
            name.strip(),
        )
        if found is None or found[1] not in PATTERNS or found[4] not in CLEAR:
            raise ArgumentError(f"{name!r} is no case's name; a name looks like {str(Case(768))!r}.")
        affine: Any = found[7] or "none"
        return cls(
            int(found[2]), int(found[3]), found[4], found[1], float(found[5]), float(found[6]), affine, int(found[8]),
            found[9] or "",
        )  # fmt: skip

    @property
    def x(self) -> Array:
        """The input, (rows, width): a copy, which may be written to."""
        return self._x.copy()

    @property
    def gamma(self) -> Array | None:
        """The scale, (width,), in the parameters' type; None if the case has none."""
        return self._parameter(1) if self.affine in ("gamma", "both") else None

    @property
    def beta(self) -> Array | None:
        """The shift, likewise."""
        return self._parameter(2) if self.affine in ("beta", "both") else None

    @property
    def dy(self) -> Array:
        """A gradient of the output, (rows, width)."""
        return np.asarray(self._random(3).standard_normal((self.rows, self.width)).astype(self.dtype))

    @property
    def is_finite(self) -> bool:
        """Whether the type holds every value; a case that it does not hold is left out."""
        largest = float(ml_dtypes.finfo(self.dtype).max)  # type: ignore[no-untyped-call]
        if self.pattern != "largest" and abs(self.scale) * (abs(self.offset) + 2000) < largest:
            return True  # without making them: no pattern goes beyond 1000 and a few
        return bool(np.isfinite(self._x.astype(np.float64)).all())

    def but(self, **changes: Any) -> Self:
        """Give the same case with some fields changed."""
        return replace(self, **changes)

    @cached_property
    def _x(self) -> Array:
        kind = ml_dtypes.finfo(self.dtype)  # type: ignore[no-untyped-call]
        unit = {"largest": float(kind.max), "whole": float(kind.smallest_subnormal)}.get(self.pattern, 1.0)
        values = PATTERNS[self.pattern](self._random(0), self.rows, self.width)
        with np.errstate(over="ignore"):
            return np.asarray((self.scale * unit * (self.offset + values)).astype(self.dtype))

    def _parameter(self, stream: int) -> Array:
        # float32 beside 16-bit values too, as models keep them; but of values that 16 bits hold, so that an
        # implementation which keeps its parameters in 16 bits is not blamed for rounding them
        values = self._random(stream).standard_normal(self.width).astype(self.dtype)
        return np.asarray(values.astype("float64" if self.dtype == "float64" else "float32"))

    def _random(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.width, self.rows, stream])


def _shortest(value: float) -> str:
    text = f"{value:g}"
    return text if float(text) == value else repr(value)

# SPDX-License-Identifier: MIT
"""This file makes the inputs that norms are graded on; each is known by a name from which it can be made again."""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import ml_dtypes
import numpy as np
import numpy.typing as npt

from layernorm.spec.errors import ArgumentError

Array = npt.NDArray[Any]


def _outlier(random: np.random.Generator, rows: int, width: int) -> Array:
    x = random.standard_normal((rows, width))
    x[:, width // 2] = 1000.0
    return x


# What a row looks like before it is scaled and moved: x = scale · (offset + pattern).
PATTERNS: dict[str, Callable[[np.random.Generator, int, int], Array]] = {
    "normal": lambda random, rows, width: random.standard_normal((rows, width)),
    "constant": lambda random, rows, width: np.zeros((rows, width)),
    "bits": lambda random, rows, width: random.integers(0, 2, (rows, width)).astype(np.float64),
    "ramp": lambda random, rows, width: np.tile(np.linspace(-1, 1, width), (rows, 1)),
    "outlier": _outlier,
    "largest": lambda random, rows, width: random.uniform(-1, 1, (rows, width)),
    "whole": lambda random, rows, width: random.integers(-3, 4, (rows, width)).astype(np.float64),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One input by name: `str(case)` says it, `Case.parse` makes it again; `x`, `gamma`, `beta`, `dy` are its arrays.

    For the pattern `largest` the scale is in units of the type's largest number, for `whole` in those of its smallest.

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
    affine: bool = False
    seed: int = 0

    def __str__(self) -> str:
        said = f"{self.pattern} d={self.width} rows={self.rows} {self.dtype} offset={self.offset:.17g}"
        return f"{said} scale={self.scale:.17g}{' affine' if self.affine else ''} seed={self.seed}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Make the case that has this name.

        Raises:
            ArgumentError: it is no name of a case.
        """
        found = re.fullmatch(
            r"(\w+) d=(\d+) rows=(\d+) (\w+) offset=(\S+) scale=(\S+?)( affine)? seed=(\d+)", name.strip()
        )
        if found is None or found[1] not in PATTERNS:
            raise ArgumentError(f"{name!r} is no case's name; a name looks like {str(Case(768))!r}.")
        return cls(
            int(found[2]), int(found[3]), found[4], found[1], float(found[5]), float(found[6]), bool(found[7]),
            int(found[8]),
        )  # fmt: skip

    @property
    def x(self) -> Array:
        """The input, (rows, width)."""
        kind = ml_dtypes.finfo(self.dtype)  # type: ignore[no-untyped-call]
        unit = {"largest": float(kind.max), "whole": float(kind.smallest_subnormal)}.get(self.pattern, 1.0)
        values = PATTERNS[self.pattern](self._random(0), self.rows, self.width)
        with np.errstate(over="ignore"):
            return np.asarray((self.scale * unit * (self.offset + values)).astype(self.dtype))

    @property
    def gamma(self) -> Array | None:
        """The scale, (width,), in the parameters' type; None if the case is not affine."""
        return self._parameter(1) if self.affine else None

    @property
    def beta(self) -> Array | None:
        """The shift, likewise."""
        return self._parameter(2) if self.affine else None

    @property
    def dy(self) -> Array:
        """A gradient of the output, (rows, width)."""
        return np.asarray(self._random(3).standard_normal((self.rows, self.width)).astype(self.dtype))

    @property
    def is_finite(self) -> bool:
        """Whether the type holds every value; a case that it does not hold is left out."""
        return bool(np.isfinite(self.x.astype(np.float64)).all())

    def but(self, **changes: Any) -> Self:
        """Give the same case with some fields changed."""
        return replace(self, **changes)

    def _parameter(self, stream: int) -> Array:
        # float32 beside 16-bit values too, as models keep them
        dtype = "float64" if self.dtype == "float64" else "float32"
        return np.asarray(self._random(stream).standard_normal(self.width).astype(dtype))

    def _random(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.width, self.rows, stream])


FIELDS = tuple(f.name for f in fields(Case))

# SPDX-License-Identifier: MIT
"""This file finds which norms of a model hold given values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from layernorm.comparing.parameters import Parameter, apart, same
from layernorm.models.norm_record import NormRecord

HEAD = 8


class Holders:
    """The norms of a model by the first values of a parameter, each read once.

    Read again for every norm of the other model, those of two checkpoints of 400 unlike norms took 73 s.
    """

    def __init__(self, records: Sequence[NormRecord], read: Callable[[NormRecord], Parameter | None]) -> None:
        self.read = read
        rows: dict[tuple[int, ...], list[tuple[NormRecord, Parameter]]] = {}
        for record in records:
            if (held := read(record)) is not None and held.values.size:
                rows.setdefault(held.values.shape, []).append((record, _head(held)))
        self.by_shape = {
            shape: (
                [record for record, _ in row],
                Parameter(np.stack([head.values for _, head in row]), np.stack([head.near for _, head in row])),
            )
            for shape, row in rows.items()
        }

    def of(self, wanted: Parameter) -> Iterator[NormRecord]:
        """Give those that hold the same values, in the model's order."""
        records, heads = self.by_shape.get(wanted.values.shape, ((), None))
        if heads is None:
            return
        head = _head(wanted)
        for k in np.flatnonzero(~apart(heads, head.values, head).any(-1)):
            held = self.read(records[k])
            if held is not None and same(held, wanted):
                yield records[k]


def _head(parameter: Parameter) -> Parameter:
    return Parameter(parameter.values.ravel()[:HEAD].copy(), parameter.near.ravel()[:HEAD].copy())

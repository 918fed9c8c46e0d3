# SPDX-License-Identifier: MIT
"""This file gives large results memory whose pages are cheap: those of an earlier result that nobody holds any more.

A C library hands small blocks out again itself, but asks the system for each block above 32 MiB, and at its first
touch every page of that is found, cleared and mapped, which takes longer than normalizing what goes there. Here the
pages of a result come back when the last array that looks at it is gone. Until they are lent again the system may take
them for others: they are marked so (MADV_FREE, which Linux and macOS have; elsewhere NumPy allocates as always). Such a
result does not own its memory, so its `resize` refuses.
"""

import mmap
from contextlib import suppress
from typing import Any

import numpy as np

from layernorm.ops.layout import Array

LARGE = 2**25
# Not more than this waits to be lent again.
KEPT = 2**30
# x86's large pages, 2 MiB: a block that begins at one can be mapped in few steps.
HUGE_PAGE = 2**21

_waiting: dict[int, list[mmap.mmap]] = {}


class _Loan:
    """Lends pages to arrays, by NumPy's array interface, and takes them back when none is left."""

    def __init__(self, pages: mmap.mmap) -> None:
        self.pages = pages
        start = np.frombuffer(pages, np.uint8).__array_interface__["data"][0]
        skipped = -start % HUGE_PAGE
        self.__array_interface__ = {
            "version": 3, "typestr": "|u1", "data": (start + skipped, False), "shape": (len(pages) - HUGE_PAGE,)
        }  # fmt: skip

    def __del__(self) -> None:
        # at the interpreter's end this file's names may be gone, and locked pages cannot be marked: they are not kept
        with suppress(OSError, TypeError, AttributeError):
            size = len(self.pages)
            if sum(kept * len(blocks) for kept, blocks in list(_waiting.items())) + size > KEPT:
                _waiting.clear()
            if size <= KEPT:
                self.pages.madvise(mmap.MADV_FREE)
                _waiting.setdefault(size, []).append(self.pages)


def _mapped(size: int) -> mmap.mmap | None:
    for _ in range(2):
        try:
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            _waiting.clear()  # pages that wait count against a limit of address space
            continue
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a hint, which a kernel without large pages refuses
                pages.madvise(mmap.MADV_HUGEPAGE)
        return pages
    return None


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Give an array of which nothing is set, as `numpy.empty` does; a large one on pages that were used before."""
    size = dtype.itemsize
    for length in shape:
        size *= length
    if size < LARGE or not hasattr(mmap, "MADV_FREE"):
        return np.empty(shape, dtype)
    rounded = (size + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE + HUGE_PAGE
    try:
        pages = _waiting[rounded].pop()
    except (KeyError, IndexError):
        found = _mapped(rounded)
        if found is None:  # NumPy will say how much is lacking
            return np.empty(shape, dtype)
        pages = found
    whole: Array = np.asarray(_Loan(pages))
    return whole[:size].view(dtype).reshape(shape)

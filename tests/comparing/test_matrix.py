# SPDX-License-Identifier: MIT
"""This file runs a thin slice of the matrix of named variants; `make cases` runs all of it."""

from dataclasses import replace

import numpy as np
import pytest
from comparing.matrix import ELSEWHERE, FAULTS, ROWS, cells, drawn_model, judged

from layernorm.comparing.checks import CODES

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

# a prime, so that every format, row and fault comes up
EVERY = 53


def test_the_first_cause_is_right_and_what_is_equal_raises_no_alarm(tmp_path):
    right, alarms, asked = 0, [], 0
    for k, cell in enumerate(cells()):
        if k % EVERY == 0 and cell.formats:
            fine, said = judged(cell, tmp_path / str(k))
            if cell.expected is None:
                alarms += [] if fine else [(cell.name, said)]
            else:
                asked, right = asked + 1, right + fine
    assert alarms == []
    assert asked >= 20
    assert right >= 0.9 * asked


def test_every_code_has_a_cell_or_a_reason():
    assert {fault.code for fault in FAULTS}.isdisjoint(ELSEWHERE)
    assert {fault.code for fault in FAULTS} | ELSEWHERE.keys() == set(CODES)


def test_every_row_has_cells_and_500_pairs_are_equal():
    every = list(cells())
    assert {cell.a.row for cell in every if cell.formats} == ROWS.keys()
    assert sum(cell.group == "equal" for cell in every) >= 500


def test_a_wrong_answer_is_judged_wrong(tmp_path):
    cell = next(cell for cell in cells() if cell.expected and cell.expected[0] == "eps-value")
    code, at = cell.expected
    assert judged(cell, tmp_path / "a")[0]
    assert not judged(cell._replace(expected=("kind", at)), tmp_path / "b")[0]
    assert not judged(cell._replace(expected=(code, at + 1)), tmp_path / "c")[0]
    assert not judged(cell._replace(expected=None), tmp_path / "d")[0]


def test_a_model_drawn_twice_is_the_same():
    one, two = (drawn_model(np.random.default_rng(3), "bert") for _ in range(2))
    assert all(np.array_equal(a.gamma, b.gamma) for a, b in zip(one.norms, two.norms, strict=True))
    assert replace(one, norms=()) == replace(two, norms=())

# SPDX-License-Identifier: MIT
"""This file runs a thin slice of the matrix of faults; `make cases` runs all of it."""

import pytest
from comparing.mutations import cells, judged

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

# a prime, so that every format, family and fault comes up
EVERY = 61


def test_the_first_cause_is_right_and_what_is_equal_raises_no_alarm(tmp_path):
    right, alarms, asked = 0, [], 0
    for k, cell in enumerate(cells()):
        if k % EVERY == 0 and (outcome := judged(cell, tmp_path / str(k))) is not None:
            if cell.expected is None:
                alarms += [] if outcome[0] else [(cell.name, outcome[1])]
            else:
                asked, right = asked + 1, right + outcome[0]
    assert alarms == []
    assert asked >= 10
    assert right >= 0.9 * asked


def test_a_wrong_answer_is_judged_wrong(tmp_path):
    cell = next(cell for cell in cells() if cell.expected and cell.expected[0] == "eps-value")
    code, name = cell.expected
    other = next(norm.name for norm in cell.a.norms if norm.name != name)
    assert judged(cell, tmp_path / "a")[0]
    assert not judged(cell._replace(expected=("kind", name)), tmp_path / "b")[0]
    assert not judged(cell._replace(expected=(code, other)), tmp_path / "c")[0]
    assert not judged(cell._replace(expected=None), tmp_path / "d")[0]

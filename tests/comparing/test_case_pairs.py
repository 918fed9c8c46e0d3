# SPDX-License-Identifier: MIT
"""This file is the scoreboard of public reports: of each, what `compare` names first as the cause.

Usage, besides as a test: python tests/comparing/test_case_pairs.py [page.md] prints it, and writes it as a page.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pytest
from comparing.case_pairs import CASES, ELSEWHERE, Numbers, same

import layernorm as ln
from layernorm.comparing.compared import Compared, Side
from layernorm.comparing.divergence import Tap, outcomes
from layernorm.comparing.explaining import explained
from layernorm.models.formats import read_model
from layernorm.models.identify import identify

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

# Reports of which another cause is named, with what is.
MISSED = {"C109": "gamma-offset"}  # a gamma of 0 for one of 1 is 1 less, too


def first_cause(pair):
    """Give the verdict, the code of what counts first, and the norm of A."""
    if isinstance(pair, Numbers):
        return _of_numbers(pair)
    comparison = ln.compare(pair.a, pair.b, pair.inputs)
    counting = [finding for finding in comparison.findings if finding.severity != "info"]
    if not counting:
        return comparison.verdict, None, None
    return comparison.verdict, counting[0].code, counting[0].a


def _of_numbers(case):
    """Run the norm as its file says, by the formula, and as the runtime at fault does."""
    model = read_model(case.file)
    found = identify(model)
    (norm,) = found.norms
    compared = Compared(Side(model, found), Side(model, found))
    gamma, beta = (None if t is None else t.values().astype(float) for t in (norm.scale, norm.shift))
    wide = case.x.astype(float)
    with np.errstate(all="ignore"):
        wrong = case.does(wide, 1.0 if gamma is None else gamma, 0.0 if beta is None else beta)
    right = ln.normalize(wide, norm.spec.assume(ln.NormSpec()), gamma, beta)
    taps = [{norm.name: Tap(case.x, np.asarray(y).astype(case.x.dtype))} for y in (right, wrong)]
    ran = outcomes(compared.pairing.pairs, *taps)
    said = [f for f in explained(compared, ran, dict(zip("ab", taps, strict=True))) if f.severity != "info"]
    verdict = "differs" if any(outcome.status in ("introduces", "differs") for outcome in ran) else "same"
    return verdict, said[0].code if said else None, said[0].a if said else None


def right(name, verdict, code, at):
    case = CASES[name]
    if case.expected is None:
        return verdict == "same" and code is None
    return verdict == "differs" and code == case.expected and case.at in (None, at)


@pytest.mark.parametrize("name", CASES)
def test_the_first_cause_named_is_the_reports(name, tmp_path):
    verdict, code, at = first_cause(CASES[name].make(tmp_path))
    if name in MISSED:
        assert code == MISSED[name]
    else:
        assert right(name, verdict, code, at), (verdict, code, at)


def test_what_is_the_same_raises_no_alarm(tmp_path):
    for name, pair in same(tmp_path).items():
        assert first_cause(pair) == ("same", None, None), name


def test_most_reports_are_pairs_and_most_causes_found():
    assert len(CASES) + len(ELSEWHERE) == 72
    assert not CASES.keys() & ELSEWHERE.keys()
    assert len(CASES) >= 58
    assert len(MISSED) <= 0.1 * len(CASES)


# Wrong when the expected causes were written down; since then the code was mended, and two pairs were rewritten.
AT_FIRST = ("C21", "C47", "C51", "C88", "C109", "C111")


def results():
    """Compare every pair: its name, the verdict, the code named first and at which norm, and whether that is right."""
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                verdict, code, at = first_cause(case.make(Path(folder)))
            except Exception as error:
                verdict, code, at = "error", type(error).__name__, str(error)[:150]
        yield name, verdict, code, at, right(name, verdict, code, at)


def page(told, controls):
    """Write the scoreboard as Markdown."""
    good = sum(fine for *_, fine in told)
    alarms = sum(said != ("same", None, None) for said in controls.values())
    lines = [
        "# Public reports of norms that went wrong", "",
        "`make cases` writes this page. Each line is a report from a public tracker, rebuilt as two small files, or as",
        "a file and the numbers of the runtime at fault (tests/comparing/case_pairs.py), and what `layernorm compare`",
        "names first as the cause. No expected cause was changed since it was first written down.", "",
        f"**{good} of {len(told)} right; {alarms} alarms on {len(controls)} pairs that are the same.** When they were",
        f"written down, {len(CASES) - len(AT_FIRST)} of {len(CASES)} were right; wrong were {', '.join(AT_FIRST)}.",
        "Since then the code was mended for C47, C51 and C111, and the pairs of C21 and C88 were rewritten: the figure",
        "above is of cases that the code has seen.", "",
        "| id | report | expected | found | |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, verdict, code, _, fine in told:
        source = (CASES[name].make.__doc__ or "").strip()
        found = code or verdict
        lines.append(
            f"| {name} | {source} | {CASES[name].expected or 'same'} | {found} | {'right' if fine else 'wrong'} |"
        )
    lines += ["", "## Reports of which there is no pair", ""]
    lines += [f"* {name}, {why}" for name, why in ELSEWHERE.items()]
    lines += ["", "## Pairs that are the same", ""]
    lines += [f"* {name}: {code or verdict}" for name, (verdict, code, _) in controls.items()]
    return "\n".join(lines) + "\n"


def main(path=None):
    told = list(results())
    for name, verdict, code, at, fine in told:
        source = (CASES[name].make.__doc__ or "").strip()
        line = (
            f"{'right' if fine else 'WRONG'}  {name:5} {CASES[name].expected or 'same':18} {code or '-':18} {verdict:8}"
        )
        print(line, source, "" if fine else at)
    for name, why in ELSEWHERE.items():
        print(f"  --   {name:5} {why}")
    good = sum(fine for *_, fine in told)
    print(f"{good} of {len(CASES)} right; {len(ELSEWHERE)} of 72 are no pairs")
    with tempfile.TemporaryDirectory() as folder:
        controls = {name: first_cause(pair) for name, pair in same(Path(folder)).items()}
    for name, said in controls.items():
        print(name, said)
    if path is not None:
        Path(path).write_text(page(told, controls), encoding="utf-8")
    return good >= 0.9 * len(CASES) and set(controls.values()) == {("same", None, None)}


if __name__ == "__main__":
    sys.exit(not main(*sys.argv[1:]))

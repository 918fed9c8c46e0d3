# SPDX-License-Identifier: MIT
"""This file runs the first 500 damaged files of each format of `fuzz.py`; `make fuzz` runs 10 000.

A format is a test, so that they run side by side.
"""

import fuzz
import fuzz_cases
import pytest

COUNT = 500


@pytest.mark.parametrize("kind", fuzz_cases.SEEDS)
def test_damaged_files_end_in_an_answer_or_a_sentence(kind):
    ends, failed = fuzz.run(kind, 0, COUNT)
    assert failed == {}
    assert set(ends) == {"read", "refused"}
    assert ends.total() == COUNT
    # else the damage is so small, or so great, that nothing is tried
    assert min(ends.values()) > COUNT / 10


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise KeyError('a')", "KeyError: 'a'"),
        ("bytearray(2**30)", "MemoryError"),
        ("while True: pass", "in faulty"),
        ("os.abort()", "status -6"),
    ],
)
def test_the_fuzzer_sees_what_is_wrong(fault, said, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "KEPT", tmp_path)
    code = (
        "import fuzz, os\nlook, fuzz.SECONDS = fuzz.look, 3\n"
        f"def faulty(path):\n    if path.parent.name == '2':\n        {fault}\n    look(path)\n"
        "fuzz.look = faulty\nfuzz.work(*{!r})"
    )
    ends, failed = fuzz.run("gguf", 0, 4, code)
    assert list(failed) == [2]
    assert said in failed[2]
    assert ends.total() == 3
    cases = [{"model.gguf": path.read_bytes()} for path in tmp_path.glob("gguf-2/model.gguf")]
    assert len(cases) == 1


def test_a_case_depends_on_its_number_alone(tmp_path):
    fuzz_cases.make_seeds("safetensors", tmp_path)
    cases = fuzz_cases.loaded(tmp_path)
    forwards = [fuzz_cases.case("safetensors", seed, cases) for seed in range(3000)]
    backwards = [fuzz_cases.case("safetensors", seed, cases) for seed in reversed(range(3000))]
    assert forwards == backwards[::-1]

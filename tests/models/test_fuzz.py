# SPDX-License-Identifier: MIT
"""This file runs the first damaged files of `fuzz.py`, 500 of each format, or 100 of those that take longer.

On two cores all take some 30 s; `make fuzz` runs 10 000 of each. A format is a test, so that they run side by side.
"""

import fuzz
import fuzz_cases
import pytest

# 5 to 10 ms a file; the others find norms by their numbers, or fork for each file and import Keras to make the first.
QUICK, SLOW = ("safetensors", "gguf", "torch_zip", "torch_export", "torch_legacy"), ("onnx", "tflite", "keras", "h5")


@pytest.mark.parametrize("kind", (*SLOW, *QUICK))
def test_damaged_files_end_in_an_answer_or_a_sentence(kind):
    count = 500 if kind in QUICK else 100
    ends, failed = fuzz.run(kind, 0, count)
    assert failed == {}
    assert set(ends) == {"read", "refused"}
    assert ends.total() == count
    # else the damage is so small, or so great, that nothing is tried
    assert min(ends.values()) > count / 10


def test_every_format_is_tried():
    assert {*QUICK, *SLOW} == set(fuzz_cases.SEEDS)


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

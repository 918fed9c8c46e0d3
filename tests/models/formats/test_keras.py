# SPDX-License-Identifier: MIT
"""This file reads what Keras itself saves, in every layout it had, and files that were made to do harm."""

import json
import os
import random
import subprocess
import sys
import zipfile

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import h5py
import keras
import ml_dtypes
import numpy as np
import pytest

import layernorm as ln
from layernorm.models.formats import hdf5
from layernorm.models.formats import keras as reader
from layernorm.models.formats.keras import read
from layernorm.spec.errors import FileError, MissingExtraError
from layernorm.spec.norm_spec import UNKNOWN

pytestmark = [
    # Keras on JAX asks NumPy for a copy in the old way, and says of .h5 that it prefers .keras
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
]

ROLE = {"gamma": "scale", "scale": "scale", "beta": "shift", "moving_mean": "mean", "moving_variance": "variance"}


@keras.saving.register_keras_serializable("mine")
class NormCell(keras.layers.Layer):
    """A cell of a recurrent layer that normalizes its state, and says so in its configuration."""

    def __init__(self, units, norm=None, **kwargs):
        super().__init__(**kwargs)
        self.units = self.state_size = self.output_size = units
        self.norm = norm or keras.layers.LayerNormalization(epsilon=2e-4, name="inside")
        self.dense = keras.layers.Dense(units)

    def build(self, shape):
        self.dense.build(shape)
        self.norm.build((*shape[:-1], self.units))

    def call(self, x, states):
        y = self.norm(self.dense(x) + states[0])
        return y, [y]

    def get_config(self):
        return super().get_config() | {"units": self.units, "norm": keras.saving.serialize_keras_object(self.norm)}

    @classmethod
    def from_config(cls, config):
        return cls(**config | {"norm": keras.saving.deserialize_keras_object(config["norm"])})


@keras.saving.register_keras_serializable("mine")
class Block(keras.layers.Layer):
    """A layer that makes a norm and does not mention it."""

    def build(self, shape):
        self.first = keras.layers.LayerNormalization(epsilon=3e-4)
        self.first.build(shape)

    def call(self, x):
        return self.first(x)


@keras.saving.register_keras_serializable("mine")
class MyRMSNorm(keras.layers.Layer):
    """A norm of somebody's own."""

    def call(self, x):
        return x


def leaves(layer):
    """Every norm inside a live layer, in the order in which it lists its own."""
    if isinstance(layer, keras.Model):
        for inner in layer.layers:
            yield from leaves(inner)
    elif isinstance(layer, keras.layers.Wrapper):
        yield from leaves(layer.layer)
    elif type(layer).__name__ in reader.NORMS:
        yield layer


def trained(model, seed=0):
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        if variable.dtype.startswith("float") or variable.dtype == "bfloat16":
            variable.assign(rng.standard_normal(variable.shape))
    return model


def everything():
    layers = keras.layers
    shared = layers.LayerNormalization(epsilon=1e-4, name="shared")
    x = inputs = keras.Input((6, 8))
    x = layers.LayerNormalization(axis=[1, 2], name="both")(x)
    x = layers.LayerNormalization(center=False, epsilon=1e-12)(x)
    x = layers.LayerNormalization(scale=False)(x)
    x = shared(x)
    x = layers.RMSNormalization(epsilon=1e-5)(x)
    y = inner = keras.Input((6, 8))
    y = layers.GroupNormalization(groups=4, name="in_inner")(y)
    y = shared(y)
    x = keras.Model(inner, layers.BatchNormalization(name="bn")(y), name="inner")(x)
    x = layers.TimeDistributed(layers.LayerNormalization(name="each"), name="steps")(x)
    x = layers.Bidirectional(layers.GRU(4, return_sequences=True))(x)
    x = keras.Sequential([layers.BatchNormalization(scale=False), layers.BatchNormalization(center=False)], name="two")(
        x
    )
    x = layers.UnitNormalization()(x)
    x = layers.Dense(3)(shared(x))
    return trained(keras.Model(inputs, x))


@pytest.fixture(scope="module", params=["keras", "h5"])
def saved(request, tmp_path_factory):
    model = everything()
    path = tmp_path_factory.mktemp("keras") / f"model.{request.param}"
    model.save(path)
    return model, path


def test_every_norm_is_found_once_with_its_settings_and_numbers(saved):
    model, path = saved
    found = read(path)
    assert found.format == "keras"
    assert found.notes == ()
    live = list(leaves(model))
    if path.suffix == ".keras":  # in .h5 Keras itself writes a layer of two models twice, and loads two
        live = list(dict.fromkeys(live))
    assert [layer.kind for layer in found.layers] == [type(layer).__name__ for layer in live]
    assert [layer.name.rpartition("/")[2] for layer in found.layers] == [layer.name for layer in live]
    assert {"inner/in_inner", "inner/bn", "steps/each"} <= {layer.name for layer in found.layers}
    for layer, norm in zip(found.layers, live, strict=True):
        said = norm.get_config()
        for key in ("axis", "epsilon", "groups", "center", "scale"):
            assert layer.settings.get(key) == said.get(key)
        assert set(layer.tensors) == {ROLE[variable.name] for variable in norm.variables}
        for variable in norm.variables:
            tensor = layer.tensors[ROLE[variable.name]]
            value = np.asarray(variable)
            assert (tensor.shape, tensor.dtype, tensor.size) == (value.shape, "float32", value.size)
            np.testing.assert_array_equal(tensor.values(), value)
        assert (layer.framework, layer.dtype, layer.training) == ("keras", "float32", False)


def test_every_array_of_the_file_can_be_read(saved):
    model, path = saved
    tensors = read(path).tensors
    dense = next(layer for layer in model.layers if isinstance(layer, keras.layers.Dense))
    kernel = [t for t in tensors.values() if t.shape == dense.kernel.shape and "dense" in t.name]
    np.testing.assert_array_equal(kernel[0].values(), np.asarray(dense.kernel))


@pytest.mark.parametrize("name", ["a.keras", "a.h5"])
def test_the_shape_of_the_input_is_among_the_settings(name, tmp_path):
    layers = keras.layers
    chain = [layers.Conv2D(4, 2), layers.ReLU(), layers.BatchNormalization(), layers.Flatten(), layers.Dense(3)]
    last = layers.BatchNormalization()
    keras.Sequential([keras.Input((5, 5, 3)), *chain, last]).save(tmp_path / name)
    shapes = [layer.settings["input_shape"] for layer in read(tmp_path / name).layers]
    assert shapes == ([[None, 4, 4, 4], [None, 3]] if name == "a.keras" else [[None] * 4, [None] * 2])
    x = inputs = keras.Input((5, 5, 3))
    keras.Model(inputs, layers.BatchNormalization()(layers.Lambda(lambda x: x)(x))).save(tmp_path / name)
    assert [layer.settings["input_shape"] for layer in read(tmp_path / name).layers] == [[None, 5, 5, 3]]


@pytest.mark.filterwarnings("ignore:You passed `rms_scaling=True`")
def test_rms_scaling_has_a_scale_whatever_it_says_and_no_shift(tmp_path):
    norm = keras.layers.LayerNormalization(rms_scaling=True, scale=False)
    model = trained(keras.Sequential([keras.Input((4,)), norm]))
    model.save(tmp_path / "a.keras")
    (layer,) = read(tmp_path / "a.keras").layers
    assert layer.settings["rms_scaling"] is True
    assert set(layer.tensors) == {"scale"}
    np.testing.assert_array_equal(layer.tensors["scale"].values(), np.asarray(norm.gamma))


def test_a_norm_in_a_cell_of_both_directions(tmp_path):
    x = inputs = keras.Input((5, 3))
    x = keras.layers.Bidirectional(keras.layers.RNN(NormCell(4), return_sequences=True), name="both")(x)
    model = trained(keras.Model(inputs, x))
    model.save(tmp_path / "a.keras")
    layers = read(tmp_path / "a.keras").layers
    live = [model.get_layer("both").forward_layer.cell.norm, model.get_layer("both").backward_layer.cell.norm]
    assert [layer.settings["epsilon"] for layer in layers] == [2e-4, 2e-4]
    for layer, norm in zip(layers, live, strict=True):
        np.testing.assert_array_equal(layer.tensors["scale"].values(), np.asarray(norm.gamma))


def test_training_is_what_the_model_calls_its_batch_norms_with(tmp_path):
    x = inputs = keras.Input((4,))
    frozen = keras.layers.BatchNormalization(name="frozen", trainable=False)
    x = keras.layers.BatchNormalization(name="left")(x, training=True)
    x = keras.layers.BatchNormalization(name="right")(frozen(x, training=True), training=False)
    y = inner = keras.Input((4,))
    y = keras.layers.BatchNormalization(name="inherits")(y)
    y = keras.layers.LayerNormalization(name="layer")(y)
    x = keras.Model(inner, y, name="inner")(x, training=True)
    model = keras.Model(inputs, x)
    for name in ("a.keras", "a.h5"):
        model.save(tmp_path / name)
        found = {layer.name: layer.training for layer in read(tmp_path / name).layers}
        assert found == {
            "left": True, "frozen": False, "right": False, "inner/inherits": True, "inner/layer": False,
        }  # fmt: skip


@pytest.mark.parametrize(("policy", "dtype"), [("mixed_float16", "float16"), ("mixed_bfloat16", "bfloat16"),
                                               ("float16", "float16")])  # fmt: skip
def test_the_type_that_a_layer_computes_in(policy, dtype, tmp_path):
    model = trained(keras.Sequential([keras.Input((4,)), keras.layers.LayerNormalization(dtype=policy)]))
    for name in ("a.keras", "a.h5"):
        model.save(tmp_path / name)
        (layer,) = read(tmp_path / name).layers
        assert layer.dtype == dtype
        assert layer.tensors["scale"].dtype == model.layers[0].gamma.dtype


def test_parameters_in_bfloat16(tmp_path):
    model = trained(keras.Sequential([keras.Input((4,)), keras.layers.LayerNormalization(dtype="bfloat16")]))
    model.save(tmp_path / "a.keras")
    gamma = read(tmp_path / "a.keras").layers[0].tensors["scale"]
    assert (gamma.dtype, gamma.values().dtype) == ("bfloat16", ml_dtypes.bfloat16)
    np.testing.assert_array_equal(gamma.values(), np.asarray(model.layers[0].gamma))


def test_what_the_configuration_does_not_say_is_a_note(tmp_path):
    model = keras.Sequential([keras.Input((4,)), Block(name="block"), MyRMSNorm(name="own")])
    model.save(tmp_path / "a.keras")
    found = read(tmp_path / "a.keras")
    assert found.layers == ()
    assert sorted(note[:40] for note in found.notes) == [
        "layer own is a mine>MyRMSNorm, a class t", "layers/block/first: parameters of what l",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["a.weights.h5", "old.h5"])
def test_weights_alone_are_a_note(name, tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.LayerNormalization(name="ln")])
    if name == "a.weights.h5":
        model.save_weights(tmp_path / name)
    else:
        with h5py.File(tmp_path / name, "w") as file:
            file["layer_norm/layer_norm/gamma:0"] = np.ones(4, np.float32)
    found = read(tmp_path / name)
    assert found.layers == ()
    assert ["weights without a configuration" in note for note in found.notes] == [True]


def legacy(path, layers, weights, *, pieces=False, config=None):
    """Write a file as Keras 2 did: a configuration, and for each layer of the model the names of its weights."""
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = json.dumps(
            config or {"class_name": "Sequential", "config": {"name": "s", "layers": layers}}
        )
        for layer, arrays in weights.items():
            group = file.create_group(f"model_weights/{layer}")
            names = [name.encode() for name in arrays]
            if pieces:
                group.attrs.update({f"weight_names{i}": np.array([name]) for i, name in enumerate(names)})
            else:
                group.attrs["weight_names"] = names
            for name, value in arrays.items():
                group[name] = value


def said(kind, name, **settings):
    return {"class_name": kind, "config": {"name": name, "dtype": "float32"} | settings}


ONE, TWO = np.arange(4, dtype=np.float32), np.arange(4, 8, dtype=np.float32)


@pytest.mark.parametrize("pieces", [False, True])
def test_names_of_keras_2_and_lists_of_names_in_pieces(pieces, tmp_path):
    norm = said("BatchNormalization", "bn", axis=[3], epsilon=1e-3, scale=True, center=True)
    arrays = {f"bn/{n}:0": ONE + i for i, n in enumerate(("gamma", "beta", "moving_mean", "moving_variance"))}
    legacy(tmp_path / "a.h5", [norm], {"bn": arrays}, pieces=pieces)
    (layer,) = read(tmp_path / "a.h5").layers
    assert layer.settings["axis"] == [3]
    assert {role: tensor.values()[0] for role, tensor in layer.tensors.items()} == {
        "scale": 0, "shift": 1, "mean": 2, "variance": 3,
    }  # fmt: skip


@pytest.mark.parametrize("list_of", ["weight_names", "layer_names"])
def test_a_piece_of_a_list_of_names_with_a_number_of_any_length(list_of, tmp_path):
    legacy(tmp_path / "a.h5", [said("LayerNormalization", "ln", center=False)], {"ln": {"ln/gamma:0": ONE}})
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["model_weights/ln"].attrs[list_of + "9" * 5000] = [b"ln/gamma:0"]
    (layer,) = read(tmp_path / "a.h5").layers
    assert layer.tensors["scale"].values().tolist() == ONE.tolist()


def test_an_integer_of_any_length_in_a_configuration(tmp_path):
    for digits in (600, 5000):
        text = json.dumps(said("LayerNormalization", "ln", epsilon="E", axis=["E"])).replace('"E"', "9" * digits)
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.attrs["model_config"] = text
        if digits > 4300:  # as many as Python reads
            assert "no JSON" in outcome(tmp_path / "a.h5")
        else:
            (norm,) = ln.inspect(tmp_path / "a.h5").norms
            assert norm.spec.eps is UNKNOWN
            assert norm.spec.axes is UNKNOWN
            assert norm.evidence["eps"].detail == "epsilon is an integer of 1994 bits"


def test_two_norms_of_one_name_in_two_inner_models(tmp_path):
    outer = [said("Sequential", "a", layers=[said("LayerNormalization", "ln", center=False)]),
             said("Sequential", "b", layers=[said("LayerNormalization", "ln", center=False)])]  # fmt: skip
    both = said("Sequential", "outer", layers=outer)
    legacy(tmp_path / "a.h5", [both], {"outer": {"a/ln/gamma:0": ONE, "b/ln/gamma:0": TWO}})
    found = {layer.name: layer.tensors["scale"].values()[0] for layer in read(tmp_path / "a.h5").layers}
    assert found == {"outer/a/ln": 0, "outer/b/ln": 4}


def test_a_wrapped_norm_whose_weights_bear_the_wrappers_name(tmp_path):
    steps = said("TimeDistributed", "steps", layer=said("LayerNormalization", "inner", center=False))
    legacy(tmp_path / "a.h5", [steps], {"steps": {"steps/gamma:0": ONE}})
    (layer,) = read(tmp_path / "a.h5").layers
    np.testing.assert_array_equal(layer.tensors["scale"].values(), ONE)


def test_what_cannot_be_told_apart_is_a_note_and_not_a_guess(tmp_path):
    inner = said("Sequential", "s", layers=[said("LayerNormalization", "x", center=False),
                                            said("LayerNormalization", "y", center=False)])  # fmt: skip
    legacy(tmp_path / "a.h5", [inner], {"s": {"p/gamma:0": ONE, "q/gamma:0": TWO}})
    found = read(tmp_path / "a.h5")
    assert [dict(layer.tensors) for layer in found.layers] == [{}, {}]
    assert "layer s/x: its scale cannot be told among the file's arrays." in found.notes


def test_a_list_of_layers_as_the_configuration_and_tensorflow_addons(tmp_path):
    layers = [
        said("Addons>InstanceNormalization", "i", axis=-1, groups=4, epsilon=1e-5),
        said("Mine>LayerNormalization", "m"),
    ]
    legacy(tmp_path / "a.h5", [], {"i": {"i/gamma:0": ONE, "i/beta:0": TWO}},
           config={"class_name": "Sequential", "config": layers})  # fmt: skip
    found = read(tmp_path / "a.h5")
    assert [(layer.kind, layer.settings["groups"]) for layer in found.layers] == [("GroupNormalization", -1)]
    assert "layer m is a Mine>LayerNormalization" in found.notes[0]


def test_a_compressed_archive_and_a_folder(saved, tmp_path):
    _, path = saved
    if path.suffix == ".h5":
        pytest.skip("an .h5 file is no archive")
    expected = read(path)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "folder")
    with zipfile.ZipFile(tmp_path / "a.keras", "w", zipfile.ZIP_DEFLATED) as packed:
        for file in (tmp_path / "folder").iterdir():
            packed.write(file, file.name)
    for place in ("folder", "a.keras"):
        found = read(tmp_path / place)
        assert [layer.name for layer in found.layers] == [layer.name for layer in expected.layers]
        gammas = [(a.tensors["scale"].values(), b.tensors["scale"].values())
                  for a, b in zip(found.layers, expected.layers, strict=True) if "scale" in a.tensors]  # fmt: skip
        assert len(gammas) > 5
        for ours, theirs in gammas:
            np.testing.assert_array_equal(ours, theirs)


# -- files made to do harm -----------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    legacy(tmp_path / "small.h5", [said("LayerNormalization", "ln", center=False)], {"ln": {"ln/gamma:0": ONE}})
    return tmp_path / "small.h5"


def outcome(path):
    """Read everything; a FileError is an answer, anything else is not."""
    try:
        for layer in read(path).layers:
            for tensor in layer.tensors.values():
                tensor.values()
    except FileError as error:
        assert str(path) in str(error)
        assert error.where == str(path)
        return str(error)
    return "read"


def test_cut_off_anywhere_is_a_sentence(small):
    whole = small.read_bytes()
    said = set()
    for length in sorted({*range(1, 100, 33), *range(100, len(whole), len(whole) // 8)}):
        small.write_bytes(whole[:length])
        said.add(outcome(small))
    assert any("cannot be read as HDF5" in sentence for sentence in said)
    assert all("fetch" in sentence for sentence in said - {"read"})


def test_changed_bytes_are_a_sentence_or_harmless(small):
    whole, rng = small.read_bytes(), random.Random(0)
    for _ in range(12):
        changed = bytearray(whole)
        for _ in range(20):
            changed[rng.randrange(len(whole))] = rng.randrange(256)
        small.write_bytes(changed)
        outcome(small)


def test_links_out_of_the_file_are_not_followed(tmp_path, small):
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["gamma"] = np.full(4, 42, np.float32)
    raw = tmp_path / "secret.bin"
    raw.write_bytes(np.full(4, 43, np.float32).tobytes())
    with h5py.File(small, "a") as file:
        group = file["model_weights/ln"]
        del group["ln/gamma:0"]
        group["ln/gamma:0"] = h5py.ExternalLink(str(secret), "gamma")
    (layer,) = read(small).layers
    assert layer.tensors == {}
    with h5py.File(small, "a") as file:
        group = file["model_weights/ln/ln"]
        del group["gamma:0"]
        group.create_dataset("gamma:0", shape=(4,), dtype="f4", external=[(str(raw), 0, 16)])
    assert "lies in another file" in outcome(small)
    with h5py.File(small, "a") as file:
        group = file["model_weights/ln/ln"]
        del group["gamma:0"]
        layout = h5py.VirtualLayout((4,), "f4")
        layout[:] = h5py.VirtualSource(str(secret), "gamma", (4,))
        group.create_virtual_dataset("gamma:0", layout)
    assert "lies in another file" in outcome(small)


def test_what_claims_to_be_large_is_not_allocated(small):
    with h5py.File(small, "a") as file:
        group = file["model_weights/ln/ln"]
        del group["gamma:0"]
        group.create_dataset("gamma:0", shape=(10**12,), dtype="f4", chunks=(1000,))
    assert "says that it has 4000000000000 bytes" in outcome(small)


def test_groups_that_hold_themselves_end(small):
    with h5py.File(small, "a") as file:
        file["model_weights/again"] = file["/"]
        file["model_weights/ln/up"] = file["model_weights"]
    assert outcome(small) == "read"


def test_a_configuration_that_is_nested_without_end_or_is_none(tmp_path):
    for text, what in (
        ("[" * 200_000, "no JSON"),
        ('{"a": ' * 200_000, "no JSON"),
        ("{", "no JSON"),
        ("[]", "is a list"),
    ):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.attrs.create("model_config", text, dtype=h5py.string_dtype())
        assert what in outcome(tmp_path / "a.h5")


def test_layers_nested_deep_are_walked(tmp_path):
    config = said("LayerNormalization", "ln", center=False)
    text = json.dumps(config)
    for depth in range(200):
        text = f'{{"class_name": "Sequential", "config": {{"name": "s{depth}", "layers": [{text}]}}}}'
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs.create("model_config", text, dtype=h5py.string_dtype())
    (layer,) = read(tmp_path / "a.h5").layers
    assert layer.name.count("/") == 199


def test_an_archive_that_would_expand_too_far(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", b"\0" * 50_000_000)
    assert "members say that they expand to" in outcome(tmp_path / "a.keras")


def test_an_archive_without_weights(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.keras", "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.npz", b"")
    assert "it holds config.json, model.weights.npz and no model.weights.h5" in outcome(tmp_path / "a.keras")


CHILDREN = {
    "crashes": ("import os; os.abort()", "crashed the HDF5 library (status -6)"),
    "hangs": ("import time; time.sleep(60)", "took more than 1 s"),
    "says nothing": ("print('x')", "crashed the HDF5 library (status 0)"),
}


@pytest.mark.parametrize("name", CHILDREN)
def test_a_child_that_ends_badly_is_a_sentence(name, small, tmp_path, monkeypatch):
    program, sentence = CHILDREN[name]
    (tmp_path / "hdf5_child.py").write_text(program)
    monkeypatch.setattr(hdf5, "__file__", str(tmp_path / "hdf5.py"))
    monkeypatch.setattr(hdf5, "SECONDS", 1)
    assert sentence in outcome(small)


def test_the_child_cannot_take_more_than_its_memory(small):
    script = f"""
import json, sys
sys.path.insert(0, {str(hdf5.__file__.rpartition("/")[0])!r})
import hdf5_child
hdf5_child.limit(2**30, 10)
try:
    bytearray(2**31)
except MemoryError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"


def test_without_h5py_it_is_a_missing_extra(small, tmp_path, monkeypatch):
    (tmp_path / "h5py.py").write_text("raise ModuleNotFoundError(name='h5py')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"^h5py is not installed, and reads HDF5 files; pip install h5py\.$"):
        read(small)


def test_a_configuration_that_is_no_utf_8_is_a_sentence(small):
    with h5py.File(small, "a") as file:
        file.attrs.create("model_config", b'{"class_name": "\xff', dtype=h5py.string_dtype("utf-8"))
    assert "its configuration is no JSON" in outcome(small)

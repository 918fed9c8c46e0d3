# SPDX-License-Identifier: MIT
"""This file exports small PyTorch modules, reads and runs the files, and checks that nothing in them is executed."""

import json
import pickle
import zipfile

import numpy as np
import pytest
import torch

import layernorm as ln
from layernorm.runtimes import can_run, run, seeded_inputs
from layernorm.spec.errors import FileError, UnsupportedError

nn = torch.nn


class LlamaRMSNorm(nn.Module):
    """As Llama writes it: loose operations, and a cast."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, width))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        wide = hidden_states.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(hidden_states.dtype)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 6)
        self.norm, self.rms, self.llama = nn.LayerNorm(6, eps=1e-6), nn.RMSNorm(6), LlamaRMSNorm(6, 1e-4)
        self.blocks = nn.Sequential(nn.Linear(6, 6), nn.GroupNorm(2, 8))
        self.batch = nn.BatchNorm1d(8, eps=1e-3)
        self.batch.running_mean.uniform_(-1, 1)
        self.batch.running_var.uniform_(0.5, 2)

    def forward(self, input_ids, scale):
        x = self.embed(input_ids) * scale
        x = self.llama(self.rms(self.norm(x)))
        x = self.batch(self.blocks(x))
        return nn.functional.layer_norm(self.norm(x), (6,), eps=1e-2)


def exported(tmp_path, module=None, inputs=None, shapes=None):
    module = (module or Net()).eval()
    inputs = inputs or (torch.randint(0, 11, (3, 8)), torch.ones(1))
    torch.export.save(torch.export.export(module, inputs, dynamic_shapes=shapes), tmp_path / "m.pt2")
    return tmp_path / "m.pt2", module


def changed(path, name, change):
    """Write an archive again with one member, of which the name ends so, changed."""
    with zipfile.ZipFile(path) as archive:
        held = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in held.items():
            archive.writestr(member, change(data) if member.endswith(name) else data)
    return path


def in_json(change):
    def of_bytes(data):
        said = json.loads(data)
        change(said)
        return json.dumps(said).encode()

    return of_bytes


def test_norms_are_read_and_tapped(tmp_path):
    batch = torch.export.Dim("n")
    path, module = exported(tmp_path, shapes={"input_ids": {0: batch}, "scale": None})
    seen = ln.inspect(path)
    specs = {norm.name: norm.spec for norm in seen.norms}
    assert {name: (s.kind, s.eps) for name, s in specs.items() if s.eps != 1e-2} == {
        "norm": ("layer", 1e-6), "rms": ("rms", 2.0**-23), "llama": ("rms", 1e-4), "blocks.1": ("group", 1e-5),
        "batch": ("batch", 1e-3), "norm#2": ("layer", 1e-6),
    }  # fmt: skip
    assert specs["blocks.1"].groups == 2 and specs["batch"].statistics == "stored"
    assert can_run(seen.model) is None
    inputs = seeded_inputs(seen.model)
    assert inputs["input_ids"].shape == (2, 8) and inputs["input_ids"].max() < 11
    done = run(seen.model, seen.norms, inputs)
    assert done.missing == {}

    live, taps = {}, {}
    for name, inside in module.named_modules():
        inside.register_forward_hook(lambda m, x, y, n=name: live.setdefault(n, []).append((x[0].numpy(), y.numpy())))
    with torch.no_grad():
        result = module(*(torch.from_numpy(inputs[n]) for n in ("input_ids", "scale"))).numpy()
    taps = {name: [done.taps[name]] for name in ("rms", "llama", "blocks.1", "batch")}
    taps["norm"] = [done.taps["norm"], done.taps["norm#2"]]
    for name, found in taps.items():
        for tap, (x, y) in zip(found, live[name], strict=True):
            assert np.array_equal(tap.input, x) and np.array_equal(tap.output, y)
    (last,) = (done.taps[name] for name, s in specs.items() if s.eps == 1e-2)
    assert np.array_equal(last.output, result)


def test_parameters_have_the_values_of_the_module(tmp_path):
    path, module = exported(tmp_path)
    model = ln.inspect(path).model
    state = {**module.state_dict()}
    assert set(model.tensors) == set(state)
    assert all(np.array_equal(tensor.values(), state[name].numpy()) for name, tensor in model.tensors.items())


def test_bfloat16_and_views_of_one_storage(tmp_path):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("whole", torch.arange(12.0).reshape(3, 4).to(torch.bfloat16))
            self.register_buffer("turned", self.whole.t())
            self.norm = nn.LayerNorm(4, dtype=torch.bfloat16)

        def forward(self, x):
            return self.norm(x + self.whole) + self.turned.sum()

    path, module = exported(tmp_path, Shared(), (torch.ones(3, 4, dtype=torch.bfloat16),))
    seen = ln.inspect(path)
    assert np.array_equal(seen.model.tensors["turned"].values().astype(float), module.turned.float().numpy())
    (tap,) = run(seen.model, seen.norms, seeded_inputs(seen.model)).taps.values()
    assert tap.output.dtype.name == "bfloat16"


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('executed')",)


def test_sample_inputs_and_shapes_are_never_executed(tmp_path):
    path, _ = exported(tmp_path, shapes={"input_ids": {0: torch.export.Dim("n")}, "scale": None})
    changed(path, "sample_inputs/model.pt", lambda data: pickle.dumps(Bomb()))

    def poison(said):
        for name in ("input_ids",):
            size = said["graph_module"]["graph"]["tensor_values"][name]["sizes"][0]
            size["as_expr"]["expr_str"] = "exec(\"raise SystemExit('executed')\")"

    changed(path, "models/model.json", in_json(poison))
    seen = ln.inspect(path)
    assert len(run(seen.model, seen.norms, seeded_inputs(seen.model)).taps) == len(seen.norms)


@pytest.mark.parametrize(
    "target",
    ["torch.ops.aten.from_file.default", "torch.ops.aten.save.default", "os.system", "torch.ops.own.thing.default",
     "_operator.methodcaller", "torch.ops.aten.__class__.default"],
)  # fmt: skip
def test_what_is_no_operator_is_not_called(tmp_path, target):
    path, _ = exported(tmp_path)

    def misdirect(said):
        said["graph_module"]["graph"]["nodes"][0]["target"] = target

    seen = ln.inspect(changed(path, "models/model.json", in_json(misdirect)))
    assert can_run(seen.model) == f"it calls {target}, and only ATen's operators are run"
    with pytest.raises(UnsupportedError, match="cannot be run: it calls "):
        run(seen.model, seen.norms, {})


def test_a_weight_that_is_pickled_is_not_read(tmp_path):
    path, _ = exported(tmp_path)

    def pickled(said):
        said["config"]["norm.weight"]["use_pickle"] = True

    seen = ln.inspect(changed(path, "model_weights_config.json", in_json(pickled)))
    assert "norm.weight" not in seen.model.tensors
    norm = next(norm for norm in seen.norms if norm.name == "norm")
    assert (norm.scale, norm.spec.scale_axes) == (None, (-1,))
    assert "kept as a pickle" in norm.evidence["scale_axes"].detail
    assert [item.why for item in seen.unidentified] == ["norm.weight is kept as a pickle, which is not read."]
    assert can_run(seen.model) == "norm.weight is kept as a pickle, and to read it would execute that"


def test_the_program_s_refusal_is_told_in_pytorch_s_words(tmp_path):
    path, _ = exported(tmp_path)
    seen = ln.inspect(path)
    inputs = seeded_inputs(seen.model)
    with pytest.raises(UnsupportedError, match=r"m\.pt2: PyTorch refuses it: IndexError: index out of range"):
        run(seen.model, seen.norms, inputs | {"input_ids": inputs["input_ids"] + 100})


@pytest.mark.parametrize(
    ("member", "change"),
    [
        ("models/model.json", lambda data: data[:-5]),
        ("models/model.json", in_json(lambda said: said.pop("graph_module"))),
        ("models/model.json", in_json(lambda said: said["graph_module"]["graph"]["nodes"][1].pop("inputs"))),
        ("model_weights_config.json", in_json(lambda said: said["config"]["norm.weight"].pop("tensor_meta"))),
        (
            "model_weights_config.json",
            in_json(lambda said: said["config"]["norm.weight"]["tensor_meta"].update(sizes=[{"as_int": -1}])),
        ),
    ],
)
def test_damaged_files(tmp_path, member, change):
    path, _ = exported(tmp_path)
    with pytest.raises(FileError, match=r"it is no whole torch\.export archive"):
        ln.inspect(changed(path, member, change))


@pytest.mark.parametrize(("sizes", "strides"), [((6, 1), (1, 2**61)), ((6,), (1,))])
def test_the_stride_of_an_axis_of_one_may_be_any_number(tmp_path, sizes, strides):
    path, module = exported(tmp_path)

    def strange(said):
        meta = said["config"]["norm.weight"]["tensor_meta"]
        meta.update(sizes=[{"as_int": n} for n in sizes], strides=[{"as_int": n} for n in strides])

    seen = ln.inspect(changed(path, "model_weights_config.json", in_json(strange)))
    assert seen.model.tensors["norm.weight"].values().ravel().tolist() == module.norm.weight.tolist()


@pytest.mark.parametrize(("sizes", "strides"), [((2**45,), (0,)), ((0, 2**61), (1, 1)), ((2**70,), (1,))])
def test_a_weight_of_a_shape_beyond_reason(tmp_path, sizes, strides):
    path, _ = exported(tmp_path)

    def beyond(said):
        meta = said["config"]["norm.weight"]["tensor_meta"]
        meta.update(sizes=[{"as_int": n} for n in sizes], strides=[{"as_int": n} for n in strides])

    with pytest.raises(FileError, match="has 6 numbers"):
        ln.inspect(changed(path, "model_weights_config.json", in_json(beyond))).document(values=True)


def test_a_weight_that_is_cut_off(tmp_path):
    path, _ = exported(tmp_path)

    def longer(said):
        said["config"]["norm.weight"]["tensor_meta"]["sizes"] = [{"as_int": 7}]

    with pytest.raises(FileError, match=r"has 6 numbers, and 7 are needed for the shape \(7,\); save it again"):
        ln.inspect(changed(path, "model_weights_config.json", in_json(longer))).document(values=True)

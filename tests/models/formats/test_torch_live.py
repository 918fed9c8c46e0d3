# SPDX-License-Identifier: MIT
"""This file looks at live, scripted and pickled modules of PyTorch that are unlike the ones of a tutorial."""

import decimal
import json
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import layernorm as ln
from layernorm.models.formats.torch_file import read, read_module
from layernorm.spec.errors import ArgumentError
from layernorm.spec.norm_spec import UNKNOWN


def looked(module):
    """Look at a module and write all that is said of it; nothing may fail."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ln.inspect(module)
        found.text()
        json.dumps(found.document(values=True))
    return found


def only(module):
    (norm,) = looked(module).norms
    return norm


@pytest.fixture(params=["live", "pickled"])
def seen(request, tmp_path):
    """Look at a module itself, and at the same module pickled."""

    def look(module):
        if request.param == "live":
            return looked(module)
        torch.save(module, tmp_path / "m.pt", pickle_protocol=2)
        return looked(tmp_path / "m.pt")

    return look


NUMBERS = {
    "float32": np.float32(0.25), "float64": np.float64(0.25), "float16": np.float16(0.25),
    "big-endian": np.array(0.25, ">f4"),
    "no axes": np.array(0.25), "one element": np.array([0.25]), "longdouble": np.longdouble(0.25),
    "tensor": torch.tensor(0.25), "tensor of one": torch.tensor([0.25], dtype=torch.float64),
    "bfloat16": torch.tensor(0.25, dtype=torch.bfloat16), "parameter": nn.Parameter(torch.tensor(0.25)),
}  # fmt: skip


@pytest.mark.parametrize("number", [n for n in NUMBERS if n != "longdouble"])
@pytest.mark.parametrize("make", [nn.LayerNorm, nn.RMSNorm])
def test_an_epsilon_of_numpys_or_a_tensors_is_read(seen, make, number):
    (norm,) = seen(make(4, eps=NUMBERS[number])).norms
    assert norm.spec.eps == 0.25
    assert norm.evidence["eps"] == ("module", "eps")


def test_an_epsilon_in_float32_is_the_number_that_float32_holds():
    assert only(nn.LayerNorm(4, eps=np.float32(1e-3))).spec.eps == float(np.float32(1e-3))
    assert only(nn.LayerNorm(4, eps=NUMBERS["longdouble"])).spec.eps == 0.25


def test_an_epsilon_that_is_a_buffer_is_read(seen):
    norm = nn.LayerNorm(4)
    del norm.eps
    norm.register_buffer("eps", torch.tensor(0.25))
    (found,) = seen(norm).norms
    assert found.spec.eps == 0.25


STRANGE = {
    "large": 2**2000, "text": "1e-3", "decimal": decimal.Decimal("0.001"), "truth": True, "complex": 1j,
    "nothing": None,
    "array": np.ones(3), "tensor": torch.ones(3), "list": [1e-3],
}  # fmt: skip


@pytest.mark.parametrize("strange", STRANGE)
def test_an_epsilon_that_is_there_and_no_number_is_unknown_and_not_the_default(seen, strange):
    (norm,) = seen(nn.LayerNorm(4, eps=STRANGE[strange])).norms
    assert norm.spec.eps is UNKNOWN
    assert norm.evidence["eps"].source == "unknown"
    assert norm.evidence["eps"].detail.startswith("eps is ")


def test_a_shape_of_numpys_integers_is_read(seen):
    (norm,) = seen(nn.LayerNorm([np.int64(4), np.int32(2)], elementwise_affine=False)).norms
    assert norm.spec.axes == (-2, -1)
    assert norm.size == 8


def test_an_epsilon_of_the_class_is_read():
    class OwnRMSNorm(nn.Module):
        eps = 0.25

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

    class Guarded(nn.LayerNorm):
        eps = property(lambda self: 0.25, lambda self, value: None)

    assert only(OwnRMSNorm()).spec.eps == 0.25
    assert only(Guarded(4)).spec.eps is UNKNOWN


class Plain(nn.LayerNorm):
    pass


class Root(nn.RMSNorm):
    def forward(self, x):
        return 2 * super().forward(x)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.eps = 0.25
        self.weight = nn.Parameter(torch.ones(4))


def test_a_subclass_is_found_whatever_it_is_called():
    plain = only(nn.Sequential(Plain(4, eps=0.25)))
    assert plain.spec == only(nn.LayerNorm(4, eps=0.25)).spec
    root = only(nn.Sequential(Root(4, eps=0.25)))
    assert (root.spec.spread, root.spec.eps) == ("rms", 0.25)
    assert root.spec.scale_offset is UNKNOWN  # what its own forward does is not known


def test_a_subclass_that_changes_what_its_parents_forward_calls_is_not_its_parent():
    class LlamaRMSNorm(Scaled):
        def forward(self, x):
            return self.weight * self._norm(x)

        def _norm(self, x):
            return x

    LlamaRMSNorm.__module__ = "transformers.models.llama.modeling_llama"

    class Same(LlamaRMSNorm):
        pass

    class Other(LlamaRMSNorm):
        def _norm(self, x):
            return 2 * x

    assert only(Same()).spec.scale_offset == 0
    assert only(Other()).spec.scale_offset is UNKNOWN


def test_what_keeps_an_epsilon_beside_a_scale_is_not_passed_over(seen):
    for module in (Plain(4), Root(4), Scaled()):
        found = seen(nn.Sequential(module))
        assert len(found.norms) + len(found.unidentified) == 1
    assert not seen(nn.Sequential(nn.CosineSimilarity(), nn.GaussianNLLLoss(), nn.Linear(2, 2))).unidentified


def test_a_norm_with_modules_inside_is_not_passed_over():
    class Dropping(nn.LayerNorm):
        def __init__(self):
            super().__init__(4)
            self.drop = nn.Dropout()

        def forward(self, x):
            return self.drop(super().forward(x))

    assert [norm.name for norm in looked(nn.Sequential(Dropping())).norms] == ["0"]


def varied(module):
    with torch.no_grad():
        for number, value in enumerate(module.parameters(), 2):
            value.copy_(torch.arange(value.numel()).reshape(value.shape) + number)
    return module


@pytest.mark.parametrize("wrap", [lambda m: parametrizations.weight_norm(m, dim=None), parametrizations.spectral_norm])
def test_gamma_of_a_parametrized_norm_is_the_effective_one(wrap):
    module = varied(wrap(nn.LayerNorm((2, 4)))).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    norm = only(module)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    np.testing.assert_array_equal(norm.scale.values(), module.weight.detach().numpy())
    assert norm.spec.scale_axes == (-2, -1)
    assert not looked(module).unidentified  # _WeightNorm computes a weight, and is no norm of the model


def test_a_parametrization_that_fails_leaves_gamma_unknown_and_says_so():
    class Failing(nn.Module):
        def forward(self, x):
            if self.armed:
                raise KeyError("no")
            return x

    Failing.armed = False
    module = parametrize.register_parametrization(nn.LayerNorm(4), "weight", Failing())
    Failing.armed = True
    found = looked(module)
    assert found.norms[0].scale is None
    assert found.norms[0].spec.scale_axes == (-1,)
    assert "leave_parametrized" in found.unidentified[0].why


@pytest.mark.filterwarnings("ignore")
def test_gamma_that_a_hook_computes_is_unknown(seen):
    found = seen(nn.utils.weight_norm(nn.LayerNorm(4), dim=None))
    (norm,) = found.norms
    assert norm.scale is None
    assert norm.spec.scale_axes == (-1,)
    assert "before each call" in norm.evidence["scale_axes"].detail
    assert "before each call" in found.unidentified[0].why


def test_gamma_that_is_no_parameter_is_read_all_the_same(seen):
    module = nn.LayerNorm(4)
    del module.weight
    module.weight = torch.arange(4.0)
    (norm,) = seen(module).norms
    assert norm.scale.values().tolist() == [0, 1, 2, 3]


@pytest.mark.filterwarnings("ignore")  # PyTorch will have TorchScript no more
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("how", ["trace", "script"])
def test_torchscript_is_looked_into_live_and_saved(tmp_path, how, saved):
    net = nn.Sequential(nn.LayerNorm(4, eps=0.25), nn.RMSNorm(4), nn.RMSNorm(4, eps=0.5), Plain(4, eps=0.125),
                        nn.GroupNorm(2, 4, eps=0.75), nn.BatchNorm1d(4, eps=2.0)).eval()  # fmt: skip
    made = torch.jit.trace(net, torch.ones(3, 4)) if how == "trace" else torch.jit.script(net)
    if saved:
        torch.jit.save(made, tmp_path / "m.pt")
        made = tmp_path / "m.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ln.inspect(made)
    norms = {norm.name: norm for norm in found.norms}
    known = ["0", "1", "2", "4", "5"]
    assert [norms[name].spec.eps for name in known] == [0.25, 2.0**-23, 0.5, 0.75, 2.0]
    assert norms["4"].spec.groups == 2
    assert norms["5"].spec.statistics == "stored"
    assert norms["0"].scale.values().tolist() == [1, 1, 1, 1]
    assert "3" in norms or any("module 3" in one.where for one in found.unidentified)  # its class is nobody's


class Calling(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x):
        return nn.functional.layer_norm(self.line(nn.functional.rms_norm(x, (4,), None, 0.5)), (4,), eps=0.25)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["trace", "script", "fx", "export"])
def test_norms_that_code_calls_as_functions_are_said_to_be_left_out(tmp_path, how):
    x, net = torch.ones(3, 4), nn.Sequential(Calling())
    made = {"trace": lambda: torch.jit.trace(net, x), "script": lambda: torch.jit.script(net),
            "fx": lambda: torch.fx.symbolic_trace(net),
            "export": lambda: torch.export.export(net, (x,)).module()}[how]()  # fmt: skip
    sources = [made]
    if how in ("trace", "script"):
        torch.jit.save(made, tmp_path / "m.pt")
        sources.append(tmp_path / "m.pt")
    for source in sources:
        found = ln.inspect(source)
        assert not found.norms
        (why,) = [one.why for one in found.unidentified]
        assert "rms_norm, layer_norm" in why or "layer_norm, rms_norm" in why


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [nn.LayerNorm, lambda n: nn.GroupNorm(2, n)])
def test_an_epsilon_that_a_trace_leaves_out_is_that_of_the_operator(make):
    (norm,) = ln.inspect(torch.jit.trace(nn.Sequential(make(4)), torch.ones(3, 4))).norms
    assert norm.spec.eps == 1e-5


@pytest.mark.filterwarnings("ignore")
def test_a_trace_keeps_the_mode_that_it_was_made_in():
    made = torch.jit.trace(nn.Sequential(nn.BatchNorm1d(4)).eval(), torch.ones(3, 4)).train()
    (norm,) = ln.inspect(made).norms
    assert norm.spec.statistics == "stored"


@pytest.mark.filterwarnings("ignore")
def test_what_torchscript_does_not_keep_is_unknown_and_not_the_default(tmp_path):
    class LlamaRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.variance_epsilon = 0.25

        def forward(self, x):
            return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    LlamaRMSNorm.__module__ = "transformers.models.llama.modeling_llama"
    made = torch.jit.trace(nn.Sequential(LlamaRMSNorm()), torch.ones(3, 4))
    torch.jit.save(made, tmp_path / "m.pt")
    for source in (made, tmp_path / "m.pt"):
        (norm,) = ln.inspect(source).norms
        assert norm.spec.eps is UNKNOWN


@pytest.mark.parametrize("depth", [150, 3000])
def test_norms_nested_deep_are_found(depth):
    module = nn.LayerNorm(4)
    for _ in range(depth):
        around = nn.Module()
        around.a = module
        module = around
    (norm,) = ln.inspect(module).norms
    assert norm.name == ".".join("a" * depth)


def test_what_is_too_deep_to_name_is_said_to_be_left_out(monkeypatch):
    monkeypatch.setattr("layernorm.models.formats.torch_module.MOST_NAMED", 20)
    module = nn.LayerNorm(4)
    for _ in range(20):
        module = nn.Sequential(module)
    found = looked(module)
    assert not found.norms
    assert "not looked into" in found.unidentified[0].why


def test_norms_that_share_their_parameters_have_a_record_each_and_a_norm_in_two_places_one(seen):
    a, b = nn.LayerNorm(4), nn.LayerNorm(4)
    b.weight = a.weight
    assert [norm.name for norm in seen(nn.Sequential(a, b)).norms] == ["0", "1"]
    # as named_modules, by whose names a norm is tapped
    assert [norm.name for norm in seen(nn.Sequential(a, nn.ReLU(), a)).norms] == ["0"]


def test_complex_parameters_have_no_values(seen):
    found = seen(nn.LayerNorm(4, dtype=torch.complex64))
    assert found.norms[0].scale is None
    assert "complex64" in found.unidentified[0].why


def test_complex_parameters_of_a_state_dict_have_no_values(tmp_path):
    torch.save({"norm.weight": torch.ones(4, dtype=torch.complex64)}, tmp_path / "m.pt")
    found = looked(tmp_path / "m.pt")
    assert not found.norms
    assert "complex64" in found.unidentified[0].why


def test_a_lazy_norm_says_that_it_is_not_initialized():
    found = looked(nn.Sequential(nn.LazyBatchNorm2d(eps=0.25)))
    assert found.norms[0].spec.eps == 0.25
    assert found.norms[0].spec.scale_axes == (1,)
    assert "call the model once" in found.unidentified[0].why


@pytest.mark.filterwarnings("ignore")
def test_sparse_and_quantized_parameters_are_read_as_the_numbers_they_stand_for():
    sparse, quantized = nn.LayerNorm(4), nn.LayerNorm(4)
    sparse.weight = nn.Parameter(torch.tensor([0.0, 1.0, 0.0, 2.0]).to_sparse())
    del quantized.weight
    quantized.register_buffer("weight", torch.quantize_per_tensor(torch.tensor([0.0, 1, 0.5, 2]), 0.5, 0, torch.qint8))
    assert ln.inspect(sparse).norms[0].scale.values().tolist() == [0, 1, 0, 2]
    assert ln.inspect(quantized).norms[0].scale.values().tolist() == [0, 1, 0.5, 2]


def test_a_pickled_sparse_parameter_is_there_and_not_read(tmp_path):
    sparse = nn.LayerNorm(4)
    sparse.weight = nn.Parameter(torch.tensor([0.0, 1.0, 0.0, 2.0]).to_sparse())
    torch.save(sparse, tmp_path / "m.pt")
    found = looked(tmp_path / "m.pt")
    assert found.norms[0].spec.scale_axes == (-1,)
    assert found.norms[0].scale is None
    assert "sparse" in found.unidentified[0].why


def test_a_module_on_the_meta_device_is_looked_into():
    found = looked(nn.Sequential(nn.LayerNorm(4, device="meta"), nn.LayerNorm(4, device="meta")))
    assert [norm.size for norm in found.norms] == [4, 4]
    assert "0.weight and 3 more" in found.unidentified[0].why


def test_a_tensor_that_only_pretends_has_no_values():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        module = nn.LayerNorm(4)
    found = looked(module)
    assert (found.norms[0].scale, found.norms[0].size) == (None, 4)
    assert "FakeTensor" in found.unidentified[0].why


def test_a_module_whose_attributes_fail_is_looked_into():
    class Refusing(nn.Module):
        def __getattr__(self, name):
            if name in ("_c", "config", "original_name"):
                raise RuntimeError(name)
            return super().__getattr__(name)

    module = Refusing()
    module.norm = nn.LayerNorm(4)
    assert [norm.name for norm in looked(module).norms] == ["norm"]


def test_a_configuration_that_fails_is_a_note():
    class Refusing:
        def to_dict(self):
            raise KeyError("name")

    model = nn.Sequential(nn.LayerNorm(4))
    model.config = Refusing()
    found = looked(model)
    assert len(found.norms) == 1
    assert found.unidentified[0].why.startswith("its config.to_dict() fails (KeyError: 'name')")


def test_a_class_is_no_model():
    with pytest.raises(ArgumentError, match=r"the class LayerNorm is no torch.nn.Module .* pass an instance"):
        ln.inspect(nn.LayerNorm)


def test_what_only_looks_like_a_module_is_no_model():
    class Double:
        def named_modules(self):
            return []

    with pytest.raises(ArgumentError, match=r"a Double is no torch.nn.Module"):
        ln.inspect(Double())


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_path_that_no_file_can_have_is_a_sentence(name):
    with pytest.raises(ln.LayerNormError, match=r"no file can have this name \(.*\); pass a path") as caught:
        ln.inspect(name)
    str(caught.value).encode()


def test_live_and_pickled_say_the_same(tmp_path):
    net = nn.Sequential(Plain(4), nn.RMSNorm(4), nn.InstanceNorm1d(4, affine=True))
    torch.save(net, tmp_path / "m.pt")
    live, pickled = read_module(net), read(tmp_path / "m.pt")
    assert [dict(layer.settings) for layer in live.layers] == [dict(layer.settings) for layer in pickled.layers]

# SPDX-License-Identifier: MIT
"""This file reads what torch.save and torch.jit.save wrote, and pickles that would do harm; none of them may run."""

import collections
import os
import pickle
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

from layernorm.models.formats import read_model
from layernorm.models.formats.archive import Archive
from layernorm.models.formats.torch_file import read, read_module, recognizes
from layernorm.spec.errors import FileError, UnsupportedError

FORMS = {"zip": {}, "stream": {"_use_new_zipfile_serialization": False}}


def saved(path, value, form="zip", **more):
    torch.save(value, path, **FORMS[form], **more)
    return path


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8, eps=1e-12)
        self.group = torch.nn.GroupNorm(2, 8, eps=1e-3)
        self.line = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.line(self.group(self.norm(x)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.bn = torch.nn.BatchNorm1d(8, eps=1e-4)
        self.last = torch.nn.LayerNorm((8,), elementwise_affine=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(self.bn(x))


NORMS = ["blocks.0.norm", "blocks.0.group", "blocks.1.norm", "blocks.1.group", "bn", "last"]


def test_a_state_dict_comes_back(tmp_path, form):
    net = Net()
    model = read_model(saved(tmp_path / "m.pt", net.state_dict(), form))
    assert model.format == "pytorch"
    assert list(model.tensors) == list(net.state_dict())
    for name, value in net.state_dict().items():
        tensor = model.tensors[name]
        assert tensor.name == name
        assert tensor.dtype == str(value.dtype).removeprefix("torch.")
        np.testing.assert_array_equal(tensor.values(), value.numpy())
    assert model.layers == ()


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "bfloat16", "int64", "int8", "uint8", "bool", "float8_e4m3fn", "complex64"]
)
def test_every_type_comes_back(tmp_path, form, dtype):
    value = torch.tensor([0.0, 1.0, 2.0, 64.0]).to(getattr(torch, dtype))
    tensor = read(saved(tmp_path / "m.pt", {"x": value}, form)).tensors["x"]
    assert tensor.dtype == dtype
    wide = tensor.values().astype(np.complex64 if dtype == "complex64" else np.float32)
    np.testing.assert_array_equal(wide, value.to(torch.complex64 if dtype == "complex64" else torch.float32).numpy())


def test_views_are_read_by_offset_and_stride(tmp_path, form):
    whole = torch.arange(24.0).reshape(4, 6)
    views = {"column": whole[:, 2], "turned": whole.T, "middle": whole[1:3, 1:5], "repeated": torch.ones(1).expand(5),
             "single": whole[3, 5], "empty": whole[:0]}  # fmt: skip
    model = read(saved(tmp_path / "m.pt", views, form))
    for name, value in views.items():
        np.testing.assert_array_equal(model.tensors[name].values(), value.numpy())


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol(tmp_path, form, protocol):
    model = read_model(saved(tmp_path / "m.pt", {"norm.weight": torch.ones(3)}, form, pickle_protocol=protocol))
    assert model.tensors["norm.weight"].values().tolist() == [1.0] * 3


@pytest.mark.parametrize(
    "value, names",
    [
        ({"state_dict": {"a": 1}, "epoch": 3}, ["a"]),
        ({"model": {"a": 1}, "optimizer": {"state": {0: {"exp_avg": 1}}, "param_groups": []}}, ["a"]),
        ({"model": {"a": 1}, "ema": {"a": 1}}, ["model.a", "ema.a"]),
        ({"model": {"enc": {"a": 1}, "dec": {"a": 1}}}, ["enc.a", "dec.a"]),
        (collections.OrderedDict(a=1, b=2), ["a", "b"]),
        ({"a": 1, "args": {"x": 3.0, "y": [1, 2]}}, ["a"]),
    ],
)
def test_checkpoints_are_searched_for_their_tensors(tmp_path, form, value, names):
    def tensors(value):
        if isinstance(value, dict):
            return type(value)((key, tensors(held)) for key, held in value.items())
        return torch.ones(2) if value == 1 and type(value) is int else torch.zeros(2) if value == 2 else value

    assert list(read(saved(tmp_path / "m.pt", tensors(value), form)).tensors) == names


def test_parameters_and_numpy_beside_them_do_no_harm(tmp_path, form):
    value = {"w": torch.nn.Parameter(torch.ones(2)), "loss": np.float64(3.0), "rng": np.arange(3), "set": {1, 2},
             "size": torch.Size([1, 2]), "device": torch.device("cpu"), "dtype": torch.float32}  # fmt: skip
    assert list(read(saved(tmp_path / "m.pt", value, form)).tensors) == ["w"]


def test_a_pickled_module_gives_its_layers(tmp_path, form):
    net = Net().eval()
    model = read_model(saved(tmp_path / "m.pt", net, form))
    assert [layer.name for layer in model.layers] == NORMS
    by_name = {layer.name: layer for layer in model.layers}
    assert by_name["blocks.1.norm"].settings["eps"] == 1e-12
    assert by_name["blocks.1.norm"].settings["normalized_shape"] == (8,)
    assert by_name["blocks.0.group"].settings["num_groups"] == 2
    assert by_name["bn"].kind == "BatchNorm1d"
    assert by_name["bn"].tensors.keys() == {"scale", "shift", "mean", "variance"}
    assert by_name["last"].tensors == {}
    assert not by_name["bn"].training
    assert set(model.tensors) == set(net.state_dict())
    np.testing.assert_array_equal(model.tensors["bn.running_var"].values(), np.ones(8))


def test_a_module_in_a_checkpoint_gives_tensors(tmp_path, form):
    net = Net()
    model = read(saved(tmp_path / "m.pt", {"model": net, "epoch": 1}, form))
    assert set(model.tensors) == set(net.state_dict())


def test_a_live_module_gives_the_same(tmp_path):
    net = Net().eval()
    live, pickled = read_module(net), read(saved(tmp_path / "m.pt", net))
    assert [(a.name, a.kind, dict(a.settings), a.training) for a in live.layers] == [
        (b.name, b.kind, dict(b.settings), b.training) for b in pickled.layers
    ]
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(live.tensors[name].values(), value.numpy())
    assert read_module(net.bfloat16()).tensors["bn.weight"].values().dtype.name == "bfloat16"


def test_a_module_without_values_says_so():
    model = read_module(torch.nn.LayerNorm(4, device="meta"))
    with pytest.raises(UnsupportedError, match="meta device"):
        model.tensors["weight"].values()


@pytest.mark.parametrize("how", ["trace", "script"])
@pytest.mark.filterwarnings("ignore")  # PyTorch will have TorchScript no more
def test_torchscript_gives_layers_and_the_numbers_of_its_code(tmp_path, how):
    net = Net().eval()
    made = torch.jit.trace(net, torch.ones(3, 8)) if how == "trace" else torch.jit.script(net)
    made.save(str(tmp_path / "m.jit"))
    model = read_model(tmp_path / "m.jit")
    assert sorted(layer.name for layer in model.layers) == sorted(NORMS)
    by_name = {layer.name: layer for layer in model.layers}
    assert by_name["blocks.0.norm"].settings["eps"] == 1e-12
    assert tuple(by_name["last"].settings["normalized_shape"]) == (8,)
    assert by_name["blocks.1.group"].settings["num_groups"] == 2
    assert by_name["blocks.1.group"].settings["eps"] == 1e-3
    assert by_name["bn"].settings["eps"] == 1e-4
    assert set(model.tensors) == set(net.state_dict()) - {"bn.num_batches_tracked"} | (
        {"bn.num_batches_tracked"} & set(model.tensors)
    )


def test_an_exported_program_in_the_old_form_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("serialized_exported_program.json", "{}")
        archive.writestr("version", "8.2")
    with pytest.raises(UnsupportedError, match=r"a torch\.export archive in an old form, which is not read"):
        read_model(tmp_path / "m.pt2")


def test_a_folder_with_its_configuration(tmp_path):
    saved(tmp_path / "pytorch_model.bin", {"norm.weight": torch.ones(3)})
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    model = read_model(tmp_path)
    assert model.config == {"model_type": "bert"}
    assert list(model.tensors) == ["norm.weight"]


def test_a_folder_of_shards(tmp_path):
    saved(tmp_path / "a.bin", {"x": torch.ones(1)})
    saved(tmp_path / "b.bin", {"y": torch.ones(2)})
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"x": "a.bin", "y": "b.bin"}}')
    assert list(read_model(tmp_path).tensors) == ["x", "y"]


def test_other_zip_archives_are_left_alone(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
        archive.writestr("config.json", "{}")
    assert not recognizes(tmp_path / "m.keras", (tmp_path / "m.keras").read_bytes())


# -- harm ---------------------------------------------------------------------------------------------


class Runs:
    """What a pickle that runs a command holds."""

    def __init__(self, touched):
        self.touched = touched

    def __reduce__(self):
        return os.system, (f"touch {self.touched}",)


@pytest.mark.parametrize("place", ["whole", "value", "key", "beside a tensor", "state"])
def test_nothing_runs(tmp_path, form, place):
    touched = tmp_path / "touched"
    harm = Runs(touched)
    value = {
        "whole": harm,
        "value": {"x": harm},
        "key": {"x": [harm]},
        "beside a tensor": {"w": torch.ones(2), "x": harm},
    }.get(place)
    if place == "state":
        value = torch.nn.LayerNorm(2)
        value.hidden = harm
    model = read_model(saved(tmp_path / "m.pt", value, form))
    assert not touched.exists()
    assert len(model.tensors) == {"beside a tensor": 1, "state": 2}.get(place, 0)
    # the file does harm where pickles run
    subprocess.run(
        [sys.executable, "-c", f"import torch; torch.load({str(tmp_path / 'm.pt')!r}, weights_only=False)"], check=True
    )
    assert touched.exists()


def archive(path, pickled, storages=(), **members):
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("m/data.pkl", pickled)
        made.writestr("m/version", "3\n")
        for key, data in storages:
            made.writestr(f"m/data/{key}", data)
        for name, data in members.items():
            made.writestr(f"m/{name}", data)
    return path


def tensor_pickle(
    offset="K\x00",
    shape="K\x02\x85",
    stride="K\x01\x85",
    size="K\x02",
    kind="ctorch\nFloatStorage\n",
    key="X\x01\x00\x00\x000",
):
    text = (f"\x80\x02}}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage{kind}{key}"
            f"X\x03\x00\x00\x00cpu{size}tQ{offset}{shape}{stride}\x89}}tRs.")  # fmt: skip
    return text.encode("latin-1")


TWO = [("0", np.array([1, 2], np.float32).tobytes())]


def test_a_pickle_of_our_own_bytes_is_read(tmp_path):
    model = read(archive(tmp_path / "m.pt", tensor_pickle(), TWO))
    assert model.tensors["w"].values().tolist() == [1.0, 2.0]


def big(number):
    data = number.to_bytes(number.bit_length() // 8 + 1, "little")
    return "\x8a" + chr(len(data)) + data.decode("latin-1")


@pytest.mark.parametrize("stride", [2**61, 2**61 + 1, 0])
def test_the_stride_of_an_axis_of_one_may_be_any_number(tmp_path, stride):
    pickled = tensor_pickle(shape="K\x02K\x01\x86", stride="K\x01" + big(stride) + "\x86")
    assert read(archive(tmp_path / "m.pt", pickled, TWO)).tensors["w"].values().tolist() == [[1.0], [2.0]]


LIES = {
    "nothing of a large shape": tensor_pickle(shape="K\x00" + big(2**61) + "\x86", stride="K\x01K\x01\x86"),
    "a shape beyond the storage": tensor_pickle(shape="K\x03\x85"),
    "an offset beyond it": tensor_pickle(offset="K\x01"),
    "a stride beyond it": tensor_pickle(stride="K\x02\x85"),
    "an endless repeat": tensor_pickle(shape=big(2**40) + "\x85", stride="K\x00\x85"),
    "a shape of 2^80": tensor_pickle(shape=big(2**80) + "\x85", stride="K\x00\x85"),
    "a negative stride": tensor_pickle(stride="J\xff\xff\xff\xff\x85"),
    "a negative offset": tensor_pickle(offset="J\xff\xff\xff\xff"),
    "a shape of text": tensor_pickle(shape="X\x01\x00\x00\x00a\x85"),
    "no shape": tensor_pickle(shape="N"),
    "more axes than strides": tensor_pickle(shape="K\x01K\x02\x86"),
    "a storage longer than its member": tensor_pickle(size=big(2**40)),
    "a storage of negative size": tensor_pickle(size="J\xff\xff\xff\xff"),
    "a storage that is not there": tensor_pickle(key="X\x01\x00\x00\x001"),
    "a storage elsewhere": tensor_pickle(key="X\x0d\x00\x00\x00../../version"),
    "an empty stack": b"\x80\x02R.",
    "no mark": b"\x80\x02t.",
    "an unset memo": b"\x80\x02h\x05.",
    "a far memo": b"\x80\x02}r\xff\xff\xff\xffj\xfe\xff\xff\xff.",
    "a long text": b"\x80\x02\x8d" + struct.pack("<Q", 2**62) + b"x.",
    "a long frame of nothing": b"\x80\x04\x95" + struct.pack("<Q", 2**62),
    "a long number": b"L" + b"9" * 20_000 + b"L\n.",
    "no opcode": b"\x80\x02\xff.",
    "no end": b"\x80\x02}",
    "nothing": b"",
    "append to a dict": b"\x80\x02}K\x01a.",
    "items of a list": b"\x80\x02]K\x01K\x02s.",
    "odd items": b"\x80\x02}(K\x01u.",
    "a persistent id of text": b"Pa\n.",
    "a persistent id of nothing": b"\x80\x02)Q.",
    "an import of a number": b"\x80\x02K\x01K\x02\x93.",
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_pickle_is_refused_in_a_sentence(tmp_path, lie):
    path = archive(tmp_path / "m.pt", LIES[lie], TWO)
    with pytest.raises(FileError) as caught:
        read_model(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 700


def test_a_storage_of_an_unheard_type_is_named(tmp_path):
    with pytest.raises(UnsupportedError, match="QStorage"):
        read(archive(tmp_path / "m.pt", tensor_pickle(kind="ctorch\nQStorage\n"), TWO))


def test_tensors_in_dicts_in_dicts_are_found(tmp_path, form):
    value = torch.ones(2)
    for _ in range(300):
        value = {"abc": value}
    (tensor,) = read(saved(tmp_path / "m.pt", value, form)).tensors.values()
    assert tensor.name == ".".join(["abc"] * 300)


CYCLES = {
    "a dict in itself": b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.",
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "lists in lists": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "tuples in tuples": b"\x80\x02)" + b"\x85" * 100_000 + b".",
    "calls of calls": b"\x80\x02cos\nsystem\n" + b")R" * 100_000 + b".",
    "dicts in dicts": b"\x80\x02" + b"}X\x01\x00\x00\x00a" * 50_000 + b"N" + b"s" * 50_000 + b".",
    "tuples for keys": b"\x80\x02})" + b"\x85" * 100_000 + b"K\x01s.",
    "twice two to the fiftieth": b"\x80\x02}q\x00" + b"".join(
        b"}q%cX\x01\x00\x00\x00ah%csX\x01\x00\x00\x00bh%cs" % (n + 1, n, n) for n in range(50)) + b".",
    "a module in itself": b"\x80\x02ctorch.nn\nModule\n)\x81q\x00}(X\x08\x00\x00\x00_modules}X\x01\x00\x00\x00ah\x00s"
                          b"X\x0b\x00\x00\x00_parameters}ub.",
}  # fmt: skip


@pytest.mark.parametrize("cycle", CYCLES)
def test_what_holds_itself_or_is_deep_ends(tmp_path, cycle):
    model = read_model(archive(tmp_path / "m.pt", CYCLES[cycle]))
    assert model.tensors == {}


@pytest.mark.parametrize("bomb", [b"}" * 10_000_000, b")\x94" * 5_000_000, b"}\x94" * 5_000_000, b"\x8f" * 10_000_000])
def test_a_pickle_of_millions_of_empty_things_is_refused(tmp_path, bomb):
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("m/data.pkl", b"\x80\x02" + bomb + b".")
    code = (
        "from layernorm.models.formats import read_model; from layernorm.spec.errors import FileError\n"
        f"try: read_model({str(path)!r})\nexcept FileError as error: print(error)\n"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    said, memory = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "beyond" in said or "more than" in said or "expand" in said
    assert int(memory) < 200_000


def test_millions_of_operations_in_a_stored_archive_are_refused(tmp_path):
    path = archive(tmp_path / "m.pt", b"\x80\x02" + b"}" * 10_000_000 + b".")
    with pytest.raises(FileError, match="more than its size makes plausible"):
        read(path)


def test_a_zip_bomb_is_refused(tmp_path):
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("m/data.pkl", tensor_pickle(size=big(2**28)))
        made.writestr("m/data/0", b"\0" * 2**28)
    with pytest.raises(FileError, match="expand"):
        read_model(path)


def test_an_archive_cut_off_anywhere_is_refused(tmp_path):
    data = saved(tmp_path / "m.pt", {"norm.weight": torch.ones(4)}).read_bytes()
    cut = tmp_path / "cut.pt"
    for length in range(1, len(data), 3):
        cut.write_bytes(data[:length])
        with pytest.raises((FileError, UnsupportedError)):
            read_model(cut)


def test_a_stream_cut_off_anywhere_is_refused(tmp_path):
    data = saved(tmp_path / "m.pt", {"norm.weight": torch.ones(4), "norm.bias": torch.ones(4)}, "stream").read_bytes()
    cut = tmp_path / "cut.pt"
    for length in range(1, len(data)):
        cut.write_bytes(data[:length])
        with pytest.raises((FileError, UnsupportedError)):
            read_model(cut)


def test_every_byte_changed_ends_in_an_answer_or_a_sentence(tmp_path, form):
    data = bytearray(saved(tmp_path / "m.pt", {"norm.weight": torch.ones(4)}, form).read_bytes())
    path = tmp_path / "changed.pt"
    for at in range(0, min(len(data), 1200), 2):
        for value in (0, 0xFF, data[at] ^ 1):
            path.write_bytes(data[:at] + bytes([value]) + data[at + 1 :])
            try:
                for tensor in read_model(path).tensors.values():
                    tensor.values()
            except (FileError, UnsupportedError):
                pass


def test_a_stream_with_a_lying_length_is_refused(tmp_path):
    path = saved(tmp_path / "m.pt", {"norm.weight": torch.ones(4)}, "stream")
    data = bytearray(path.read_bytes())
    assert struct.unpack("<q", data[-24:-16]) == (4,)
    data[-24:-16] = struct.pack("<q", 2**40)
    path.write_bytes(data)
    with pytest.raises(FileError, match="should have 16 bytes"):
        read(path)


def test_other_pickles_are_named(tmp_path):
    path = tmp_path / "m.pt"
    path.write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(UnsupportedError, match=r"not a file that torch\.save"):
        read_model(path)


def test_pytorch_is_not_imported_to_read_its_files(tmp_path):
    path = saved(tmp_path / "m.pt", Net())
    code = (
        f"import sys; from layernorm.models.formats import read_model; m = read_model({str(path)!r})\n"
        "[t.values() for t in m.tensors.values()]; print(len(m.layers), 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == [
        "6",
        "False",
    ]


def test_large_tensors_are_not_read(tmp_path, monkeypatch):
    path = saved(tmp_path / "m.pt", {"big": torch.zeros(2**20), "norm.weight": torch.ones(4)})
    lengths = []
    real = Archive.read

    def counted(self, *args):
        data = real(self, *args)
        lengths.append(len(data))
        return data

    monkeypatch.setattr(Archive, "read", counted)
    assert read(path).tensors["norm.weight"].values().tolist() == [1.0] * 4
    assert max(lengths) < 1000

# SPDX-License-Identifier: MIT
"""This file makes small model files of every format, and damages them in ways that depend on a number alone.

A case is files by name; the first is the one to inspect, and others lie beside it.
"""

import io
import json
import logging
import os
import warnings
import zipfile
from copy import deepcopy
from pathlib import Path
from random import Random

import numpy as np

EXTREME = (0, 1, 2, 3, 7, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
ODD = (None, True, 0, -1, 1, 3, 2**31, 2**63, 10**30, -0.0, 1e-45, 1e308, float("nan"), float("inf"), "", "x", "0",
       "\x00", "é" * 50, "float32", [], [0], [-1], [[[[]]]], {}, {"a": {}}, ["a", 1, None])  # fmt: skip
GAMMA, BETA = np.linspace(0.5, 1.5, 8, dtype=np.float32), np.linspace(-1, 1, 8, dtype=np.float32)
BERT = {"model_type": "bert", "architectures": ["BertModel"], "layer_norm_eps": 1e-12, "hidden_size": 8,
        "num_hidden_layers": 1, "torch_dtype": "float32"}  # fmt: skip
LLAMA = {"model_type": "llama", "rms_norm_eps": 1e-5, "hidden_size": 8, "num_hidden_layers": 1}
OPS = ("Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal", "ReduceMean", "ReduceSum", "ReduceL2", "Max", "Clip",
       "Cast", "Reshape", "Transpose", "Expand", "Identity", "Constant", "LayerNormalization", "BatchNormalization",
       "InstanceNormalization", "GroupNormalization", "RMSNormalization", "LpNormalization", "Slice", "Split", "If",
       "DequantizeLinear", "Shape", "Gather", "Concat", "Unsqueeze", "Squeeze", "MeanVarianceNormalization",
       "SimplifiedLayerNormalization", "SkipLayerNormalization", "Where", "Greater")  # fmt: skip


# -- small files ---------------------------------------------------------------------------------------------


def onnx_seeds():
    from onnx import TensorProto, helper, numpy_helper

    def node(op, inputs, output, **attributes):
        return helper.make_node(op, inputs.split(), output.split(), f"n_{output.split()[0]}", **attributes)

    def model(nodes, arrays, functions=(), opset=17):
        weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in arrays.items()]
        last = nodes[-1].output[0]
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 8]) for name in ("x", last))
        graph = helper.make_graph(nodes, "g", [x], [y], weights)
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("f", 1)]
        return {"model.onnx": helper.make_model(graph, opset_imports=imports, functions=functions).SerializeToString()}

    weights = {"g": GAMMA, "b": BETA}
    loose = [
        node("ReduceMean", "x", "m", axes=[-1]), node("Sub", "x m", "d"), node("Pow", "d two", "q"),
        node("ReduceMean", "q", "v", axes=[-1]), node("Add", "v eps", "s"), node("Sqrt", "s", "r"),
        node("Div", "d r", "h"), node("Mul", "h g", "k"), node("Add", "k b", "y"),
    ]  # fmt: skip
    yield model(loose, {**weights, "two": np.float32(2), "eps": np.float32(1e-5)})
    fused = [
        node("LayerNormalization", "x g b", "y", epsilon=1e-5), node("BatchNormalization", "y b3 b3 b3 b3", "z"),
        node("InstanceNormalization", "z b3 b3", "u"), node("LpNormalization", "u", "w", axis=-1, p=2),
        node("RMSNormalization", "w g", "t"), node("GroupNormalization", "t b3 b3", "o", num_groups=3),
    ]  # fmt: skip
    yield model(fused, {**weights, "b3": BETA[:3]}, opset=23)
    rms = [
        node("Mul", "x x", "q"), node("ReduceMean", "q ax", "v"), node("Add", "v eps", "s"), node("Sqrt", "s", "r"),
        node("Reciprocal", "r", "i"), node("Mul", "x i", "h"), node("Cast", "g16", "g", to=1), node("Mul", "h g", "y"),
    ]  # fmt: skip
    yield model(rms, {"g16": GAMMA.astype(np.float16), "ax": np.int64([-1]), "eps": np.float32(1e-6)}, opset=18)
    inner = helper.make_graph(loose, "body", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    norm = helper.make_function("f", "Norm", ["a", "s"], ["r"], [node("LayerNormalization", "a s", "r")], [
        helper.make_opsetid("", 17)])  # fmt: skip
    nested = [
        helper.make_node("Norm", ["x", "g"], ["e"], domain="f"),
        node("DequantizeLinear", "q8 eps", "dq"), node("Mul", "e dq", "c"),
        node("If", "flag", "z", then_branch=inner, else_branch=inner),
        node("SkipLayerNormalization", "z x g b", "last", epsilon=1e-5),
    ]  # fmt: skip
    arrays = {**weights, "two": np.float32(2), "eps": np.float32(1e-5), "flag": np.array(True)}
    yield model(nested, arrays | {"q8": np.arange(8, dtype=np.int8)}, [norm])


def bert():
    names = ("embeddings.LayerNorm", "encoder.layer.0.attention.output.LayerNorm", "encoder.layer.0.output.LayerNorm")
    return {f"{name}.{role}": array for name in names for role, array in (("weight", GAMMA), ("bias", BETA))}


def llama():
    names = ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "layers.0.self_attn.q_norm", "norm")
    return {f"model.{name}.weight": GAMMA for name in names} | {
        "model.layers.0.mlp.up_proj.weight": np.outer(BETA, BETA)
    }


def safetensors_seeds():
    from safetensors.numpy import save

    for arrays, config in ((bert(), BERT), (llama(), LLAMA)):
        yield {"model.safetensors": save(arrays, {"format": "pt"}), "config.json": json.dumps(config).encode()}
    places = {name: f"{i % 2}.safetensors" for i, name in enumerate(llama())}
    parts = {file: save({n: a for n, a in llama().items() if places[n] == file}) for file in set(places.values())}
    index = json.dumps({"metadata": {"total_size": 480}, "weight_map": places}).encode()
    yield {"model.safetensors.index.json": index, **parts, "config.json": json.dumps(LLAMA).encode()}
    batch = {f"bn.{role}": GAMMA for role in ("weight", "bias", "running_mean", "running_var")}
    yield {"model.safetensors": save({**batch, "bn.num_batches_tracked": np.array(3)})}


def gguf_seeds():
    import tempfile

    import gguf

    for architecture in ("llama", "bert", "gemma2"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.gguf"
            writer = gguf.GGUFWriter(path, architecture)
            if architecture == "bert":
                writer.add_layer_norm_eps(1e-12)
            else:
                writer.add_layer_norm_rms_eps(1e-5)
            writer.add_block_count(1)
            writer.add_embedding_length(8)
            writer.add_array("tokenizer.ggml.tokens", ["a", "b", "c"])
            writer.add_array("llama.rope.sections", [1, 2, 3])
            for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm", "blk.0.attn_q_norm"):
                writer.add_tensor(f"{name}.weight", GAMMA)
                writer.add_tensor(f"{name}.bias", BETA.astype(np.float16))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            yield {"model.gguf": path.read_bytes()}


def torch_seeds(**form):
    import torch

    def saved(value):
        out = io.BytesIO()
        torch.save(value, out, **form)
        return out.getvalue()

    for arrays, config in ((bert(), BERT), (llama(), LLAMA)):
        state = {name: torch.tensor(array) for name, array in arrays.items()}
        yield {"pytorch_model.bin": saved(state), "config.json": json.dumps(config).encode()}
    state = {
        "epoch": 3,
        "model": {"norm.weight": torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16))},
        "opt": [1.5],
    }
    yield {"model.pt": saved(state)}
    nn = torch.nn
    yield {"model.pt": saved(nn.Sequential(nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.BatchNorm1d(8), nn.RMSNorm(8)))}


def torch_zip_seeds():
    import torch

    yield from torch_seeds()
    net, out = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.BatchNorm1d(3)).eval(), io.BytesIO()
    torch.jit.save(torch.jit.script(net), out)
    yield {"model.pt": out.getvalue()}


def torch_export_seeds():
    import torch

    nn, out = torch.nn, io.BytesIO()
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.RMSNorm(8), nn.GroupNorm(2, 8), nn.BatchNorm1d(8)).eval()
    torch.export.save(torch.export.export(net, (torch.ones(3, 4),)), out)
    yield {"model.pt2": out.getvalue()}


def keras_seeds(suffix):
    import tempfile

    os.environ.setdefault("KERAS_BACKEND", "numpy")  # the quickest to import
    logging.getLogger("absl").setLevel(logging.ERROR)  # it advises against .h5
    import keras
    from keras import layers

    plain = [layers.LayerNormalization(axis=[1, 2]), layers.BatchNormalization(), layers.RMSNormalization()]
    inner = keras.Sequential([layers.Input((3, 8)), layers.GroupNormalization(4), layers.UnitNormalization()])
    for inside in (plain, [inner, layers.TimeDistributed(layers.LayerNormalization())]):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"model.{suffix}"
            keras.Sequential([layers.Input((3, 8)), *inside]).save(path)
            yield {path.name: path.read_bytes()}


def tflite_seeds():
    import sys

    sys.path.insert(0, str(Path(__file__).parent / "formats"))
    from tflite_maker import Subgraph, made

    keep = {0: ("u8", 1)}
    graph = Subgraph()
    graph.input("x", (2, 3, 8))
    for name, value in {"axes": np.int32([2]), "eps": np.float32(1e-3), "gamma": GAMMA, "beta": BETA}.items():
        graph.constant(name, value)
    graph.constant("weights", np.int8(np.arange(8)), ([0.1], [0], 0))
    graph.operator("MEAN", ["x", "axes"], ["mean"], keep, (2, 3, 1))
    graph.operator("SQUARED_DIFFERENCE", ["x", "mean"], ["squares"])
    graph.operator("MEAN", ["squares", "axes"], ["variance"], keep, (2, 3, 1))
    graph.operator("ADD", ["variance", "eps"], ["safe"], {0: ("i8", 0)})
    graph.operator("RSQRT", ["safe"], ["r"])
    graph.operator("SUB", ["x", "mean"], ["centred"], {0: ("i8", 0)})
    graph.operator("MUL", ["centred", "r"], ["hat"], {0: ("i8", 0)})
    graph.operator("MUL", ["hat", "gamma"], ["scaled"], {0: ("i8", 0)})
    graph.operator("ADD", ["scaled", "beta"], ["y"], {0: ("i8", 1)})
    graph.operator("L2_NORMALIZATION", ["y"], ["z"], {0: ("i8", 0)})
    graph.outputs.append("z")
    yield {"model.tflite": made([graph])}


def card_seeds():
    import tempfile

    from layernorm.report.inspection import inspect

    for seeds in (safetensors_seeds, gguf_seeds):
        for files in seeds():
            with tempfile.TemporaryDirectory() as folder:
                document = inspect(written(files, Path(folder) / "model")).document(values=True)
            yield {"card.json": json.dumps(document).encode()}


SEEDS = {
    "card": card_seeds,
    "onnx": onnx_seeds,
    "safetensors": safetensors_seeds,
    "gguf": gguf_seeds,
    "torch_zip": torch_zip_seeds,
    "torch_legacy": lambda: torch_seeds(_use_new_zipfile_serialization=False),
    "torch_export": torch_export_seeds,
    "keras": lambda: keras_seeds("keras"),
    "h5": lambda: keras_seeds("h5"),
    "tflite": tflite_seeds,
}


def make_seeds(kind, folder):
    """Write the whole files of a format, each case into a folder of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch and Keras say of old formats that they are old
        for number, files in enumerate(SEEDS[kind]()):
            written(files, folder / str(number))


def loaded(folder):
    """Read the cases that were written to a folder."""
    cases = []
    for inside in sorted(Path(folder).iterdir()):
        order = json.loads((inside / "order").read_text())
        cases.append({name: (inside / name).read_bytes() for name in order})
    return cases


def written(files, folder):
    """Write a case and give the path to inspect."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "order").write_text(json.dumps(list(files)))
    return folder / next(iter(files))


# -- damage --------------------------------------------------------------------------------------------------


def case(kind, seed, cases):
    """Give the damaged case of a number."""
    draw = Random(f"{kind} {seed}")
    files = dict(draw.choice(cases))
    name = draw.choice(list(files)) if draw.random() < 0.5 else next(iter(files))
    files[name] = damaged(draw, files[name])
    return files


def damaged(draw, data):
    """Damage a file in its own terms, where they are known, or as bytes."""
    way = draw.random()
    if way < 0.8 and data.startswith(b"PK"):
        return with_member(draw, data)
    if way < 0.6 and b'{"' in data and (found := with_json(draw, data)):
        return found
    if way < 0.6 and data[:1] == b"\x08":
        return with_graph(draw, data)
    for _ in range(draw.choice((1, 1, 1, 1, 1, 2, 4, 16))):
        data = with_bytes(draw, data)
    return data


def with_bytes(draw, data):
    """Change one place of a file."""
    at, length = draw.randrange(len(data) + 1), draw.choice((1, 2, 4, 8, 8, 64, 1000))
    match draw.randrange(8):
        case 0:
            return data[:at] if draw.random() < 0.3 else data[:at] + bytes(length) + data[at + length :]
        case 1:
            return data[:at] + data[at + length :]
        case 2:
            other = draw.randrange(len(data) + 1)
            return data[:at] + data[other : other + length] + data[at:]
        case 3:
            other = draw.randrange(len(data) + 1)
            chunk = data[other : other + length]
            return data[:at] + chunk + data[at + len(chunk) :]
        case 4 | 5:
            width, order = draw.choice((1, 2, 4, 4, 8)), draw.choice(("little", "little", "big"))
            at -= at % width if draw.random() < 0.8 else 0
            number = draw.choice(EXTREME) + draw.choice((0, 0, 0, -1, 1))
            return data[:at] + (number % 256**width).to_bytes(width, order) + data[at + width :]
        case 6:
            return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
    if at == len(data):
        return data
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def with_member(draw, data):
    """Damage one member of a zip archive and pack it again, so that its checksum is right."""
    archive = zipfile.ZipFile(io.BytesIO(data))
    members = {info.filename: archive.read(info) for info in archive.infolist()}
    telling = [name for name in members if name.endswith((".pkl", ".json", ".py", ".h5"))]
    name = draw.choice(telling if draw.random() < 0.85 else list(members))
    if draw.random() < 0.03:
        del members[name]
    else:
        members[name] = damaged(draw, members[name])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as new:
        for inside, content in members.items():
            new.writestr(inside, content)
    return out.getvalue()


def with_json(draw, data):
    """Damage a JSON object that stands in a file; in a binary one it keeps its length, where that is possible."""
    begin = data.index(b'{"')
    text = data[begin:].decode("utf-8", "surrogateescape")
    try:
        found, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return None
    for _ in range(draw.choice((1, 1, 2, 5))):
        odd(draw, found)
    new = json.dumps(found).encode()
    length = len(text[:end].encode("utf-8", "surrogateescape"))
    if begin == 8:  # safetensors: the length stands before
        return len(new).to_bytes(8, "little") + new + data[begin + length :]
    return data[:begin] + new.ljust(length) + data[begin + length :]


def odd(draw, value):
    """Put something odd at a random place in a JSON value."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(value[key], (dict, list)) and value[key] and draw.random() < 0.85:
            value = value[key]
            continue
        action = draw.randrange(6)
        if action == 0:
            del value[key]
        elif action == 1 and isinstance(value, dict):
            renamed = draw.choice(keys) + draw.choice(("", "x", ".weight"))
            value[renamed] = value.pop(key)
        elif action == 2 and not isinstance(value[key], (dict, list)):
            value[key] = [value[key]] * draw.choice((1, 2, 500))
        elif action == 3:
            deep = value[key]
            for _ in range(draw.choice((1, 5, 50))):
                deep = {"config": deep} if draw.random() < 0.5 else [deep]
            value[key] = deep
        elif action == 4 and not isinstance(value[key], (dict, list)):
            value[key] = value[draw.choice(keys)]
        else:
            value[key] = deepcopy(draw.choice(ODD))  # else the next change would be made in ODD
        return


def with_graph(draw, data):
    """Change an ONNX graph: what its nodes are, read and say, and what its weights claim."""
    import onnx

    try:
        model = onnx.ModelProto.FromString(data)
    except Exception:  # protobuf's, without types
        return data
    graph = model.graph
    for _ in range(draw.choice((1, 1, 2, 4))):
        node = draw.choice(graph.node)
        names = [name for n in graph.node for name in (*n.input, *n.output)] + ["", "new"]
        match draw.randrange(12):
            case 0 | 1:
                node.op_type = draw.choice(OPS)
            case 2 | 3 if node.input:
                node.input[draw.randrange(len(node.input))] = draw.choice(names)
            case 4 if node.input:
                node.input.pop()
            case 5:
                node.input.append(draw.choice(names))
            case 6 if len(graph.node) > 1:
                graph.node.remove(node)
            case 7 if node.attribute:
                said = draw.choice(node.attribute)
                said.type = draw.choice((said.type, said.type, 0, 1, 2, 3, 4, 5, 6, 7, 8))
                said.i, said.f = draw.choice(EXTREME[:-1]) - draw.choice((0, 2**20)), draw.choice((0, -1, 1e38, 1e-45))
                said.ints[:] = [draw.choice((-(2**63), -3, -1, 0, 1, 2, 2**31)) for _ in range(draw.randrange(4))]
            case 8 if node.attribute:
                draw.choice(node.attribute).name = draw.choice(
                    ("axis", "axes", "epsilon", "keepdims", "to", "value", "p")
                )
            case 9 | 10 if graph.initializer:
                weight = draw.choice(graph.initializer)
                weight.dims[:] = [draw.choice((-1, 0, 1, 2, 8, 2**16, 2**40)) for _ in range(draw.randrange(4))]
                weight.data_type = draw.choice((weight.data_type, weight.data_type, 0, 1, 6, 7, 8, 10, 16, 22, 99))
            case _:
                version = draw.choice((-1, 0, 1, 5, 7, 9, 11, 12, 13, 17, 18, 21, 23, 2**40))
                draw.choice(model.opset_import).version = version
    return model.SerializeToString()

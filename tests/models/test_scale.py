# SPDX-License-Identifier: MIT
"""This file inspects the largest: a checkpoint of 20 GB, and graphs of 100 000 nodes, whose work grows as they do."""

import json
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from layernorm.models import evaluate as evaluation
from layernorm.models.formats import read_model
from layernorm.models.identify import identify

# Run in a process of its own, whose peak of memory is this work's: the processor's seconds, which a busy machine hardly
# lengthens, and kilobytes are printed.
MEASURED = """
import sys, time
import layernorm as ln
start = time.process_time()
seen = ln.inspect(sys.argv[1])
print(len(seen.norms), len(seen.unidentified), time.process_time() - start)
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""


def measured(path):
    """Give the norms, the unidentified, the seconds and the kilobytes of one inspection."""
    command = [sys.executable, "-c", MEASURED, str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(said[0]), int(said[1]), float(said[2]), int(said[3])


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the system does not say what a process took")  # noqa: PTH110
def test_twenty_gigabytes(tmp_path):
    """The files are holes but for their headers; norms' tensors are read, 1.3 MB of them, and no others."""
    places = {}
    for part in range(20):
        name, header, begin = f"model-{part:05}-of-00020.safetensors", {}, 0
        for layer in range(4 * part, 4 * part + 4):
            for word, length in (("mlp.up_proj", 2**27), ("input_layernorm", 4096), ("post_attention_layernorm", 4096)):
                said = {"dtype": "BF16", "shape": [length], "data_offsets": [begin, begin + 2 * length]}
                header[f"model.layers.{layer}.{word}.weight"] = said
                begin += 2 * length
        text = json.dumps(header).encode()
        (tmp_path / name).write_bytes(len(text).to_bytes(8, "little") + text)
        os.truncate(tmp_path / name, 8 + len(text) + begin)
        places |= dict.fromkeys(header, name)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (tmp_path / "config.json").write_text('{"model_type": "llama", "rms_norm_eps": 1e-5, "num_hidden_layers": 80}')
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) > 20e9
    norms, _, seconds, kilobytes = measured(tmp_path)
    assert norms == 160
    # 0.1 s and 32 MB where it was written
    assert seconds < 2
    assert kilobytes < 200_000


def blocks(path, count, every=1):
    """Write a graph of `count` blocks of 10 nodes: in some a layer norm of loose operations, in others none."""
    weights = {"two": np.float32(2), "eps": np.float32(1e-5), "one": np.float32(1)}
    nodes = []
    for i in range(count):
        x, gamma, beta = f"h{i}", f"g{i}", f"b{i}"
        weights |= {
            gamma: np.linspace(0.5, 1.5, 8, dtype=np.float32) + i,
            beta: np.linspace(-1, 1, 8, dtype=np.float32),
        }
        steps = (
            [("ReduceMean", x), ("Sub", x, 0), ("Pow", 1, "two"), ("ReduceMean", 2), ("Add", 3, "eps"), ("Sqrt", 4),
             ("Div", 1, 5), ("Mul", 6, gamma), ("Add", 7, beta), ("Mul", 8, "one")] if i % every == 0
            else [("Mul", x, gamma), *(("Add", k, beta) for k in range(8)), ("Relu", 8)]
        )  # fmt: skip
        for k, (op, *inputs) in enumerate(steps):
            read = [f"h{i}_{n}" if isinstance(n, int) else n for n in inputs]
            said = {"axes": [-1]} if op == "ReduceMean" else {}
            nodes.append(helper.make_node(op, read, [f"h{i + 1}" if k == 9 else f"h{i}_{k}"], **said))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 8]) for name in ("h0", f"h{count}"))
    arrays = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], arrays)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_a_graph_of_a_hundred_thousand_nodes(tmp_path):
    """With 200 norms it takes 3.6 s where it was written."""
    norms, unidentified, seconds, _ = measured(blocks(tmp_path / "a.onnx", 10_000, every=50))
    assert (norms, unidentified) == (200, 0)
    assert seconds < 10


def test_work_grows_as_norms_do(tmp_path, monkeypatch):
    """Counted in operations that are run on numbers, which, other than time, are the same at each run."""

    def operations(count):
        done = Counter()
        for name, operation in evaluation.OPERATIONS.items():

            def counting(*values, name=name, operation=operation, **more):
                done[name] += 1
                return operation(*values, **more)

            monkeypatch.setitem(evaluation.OPERATIONS, name, counting)
        found = identify(read_model(blocks(tmp_path / f"{count}.onnx", count)))
        monkeypatch.undo()
        assert len(found.norms) == count
        return sum(done.values())

    few, many = operations(10), operations(100)
    assert few > 0
    assert many <= 10.5 * few

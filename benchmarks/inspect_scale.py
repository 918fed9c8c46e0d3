# SPDX-License-Identifier: MIT
"""This file times `ln.inspect` against the size of what it looks into, and draws docs/inspect-scale.svg.

Usage: python benchmarks/inspect_scale.py, which takes two minutes: ONNX graphs of a thousand to a hundred thousand
nodes, with 200 layer norms of loose operations or with none, and safetensors of as many tensors, a quarter of them
norms'. Each is inspected by a process of its own, thrice, and the least time is taken, for others use the machine too.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "layernorm"  # the same numbers make the same file
from matplotlib import pyplot as plt  # noqa: E402

ROOT = Path(__file__).parents[1]
SIZES, ROUNDS, NORMS = (3_000, 10_000, 30_000, 100_000), 3, 200
MEASURED = """
import sys, time
import layernorm as ln
start = time.perf_counter()
norms = len(ln.inspect(sys.argv[1]).norms)
seconds = time.perf_counter() - start
print(norms, seconds, open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""
LAYER_NORM = (("ReduceMean", "x"), ("Sub", "x", 0), ("Pow", 1, "two"), ("ReduceMean", 2), ("Add", 3, "eps"),
              ("Sqrt", 4), ("Div", 1, 5), ("Mul", 6, "gamma"), ("Add", 7, "beta"), ("Relu", 8))  # fmt: skip
NO_NORM = (("Mul", "x", "gamma"), *(("Add", k, "beta") for k in range(8)), ("Relu", 8))


def graph(path: Path, nodes: int, norms: int) -> None:
    """Write blocks of ten nodes, the first of which are layer norms."""
    made = []
    for i in range(nodes // 10):
        own = {"x": f"h{i}", "two": "two", "eps": "eps", "gamma": "gamma", "beta": "beta"}
        for k, (op, *inputs) in enumerate(LAYER_NORM if i < norms else NO_NORM):
            read = [own[n] if isinstance(n, str) else f"h{i}_{n}" for n in inputs]
            said = {"axes": [-1]} if op == "ReduceMean" else {}
            made.append(helper.make_node(op, read, [f"h{i + 1}" if k == 9 else f"h{i}_{k}"], **said))
    weights = {"two": 2, "eps": 1e-5, "gamma": np.linspace(0.5, 1.5, 64), "beta": np.linspace(-1, 1, 64)}
    arrays = [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights.items()]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 64]) for name in ("h0", f"h{nodes // 10}"))
    whole = helper.make_graph(made, "g", [x], [y], arrays)
    save(helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)]), path)


def tensors(path: Path, count: int) -> None:
    """Write a checkpoint whose weights are a hole in the file; two of eight tensors of a layer are norms'."""
    words = {"input_layernorm": 64, "post_attention_layernorm": 64} | {
        f"{part}_proj": 2**14
        for part in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.up", "mlp.down")
    }
    header, begin = {}, 0
    for layer in range(count // len(words)):
        for word, length in words.items():
            said = {"dtype": "BF16", "shape": [length], "data_offsets": [begin, begin + 2 * length]}
            header[f"model.layers.{layer}.{word}.weight"] = said
            begin += 2 * length
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + begin)


WRITERS: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    f"ONNX nodes, {NORMS} norms among them": ("a.onnx", lambda path, size: graph(path, size, NORMS)),
    "ONNX nodes, no norm": ("a.onnx", lambda path, size: graph(path, size, 0)),
    "safetensors, a quarter of them norms'": ("a.safetensors", tensors),
}


def measured(path: Path) -> tuple[int, float, float]:
    """Give the norms, the least seconds of some rounds, and the most megabytes."""
    runs = []
    for _ in range(ROUNDS):
        command = [sys.executable, "-c", MEASURED, str(path)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        runs.append((int(said[0]), float(said[1]), int(said[2]) / 1000))
    return runs[0][0], min(seconds for _, seconds, _ in runs), max(megabytes for *_, megabytes in runs)


def main() -> None:
    """Measure, print a table, and draw."""
    figure, axes = plt.subplots(figsize=(7, 4.2))
    for label, (name, write) in WRITERS.items():
        points = []
        for size in SIZES:
            with tempfile.TemporaryDirectory() as folder:
                write(Path(folder) / name, size)
                norms, seconds, megabytes = measured(Path(folder) / name)
            print(f"{label}: {size} → {norms} norms, {seconds:.2f} s, {megabytes:.0f} MB", flush=True)
            points.append(seconds)
        axes.loglog(SIZES, points, marker="o", label=f"{label}: {points[-1]:.1f} s for {SIZES[-1]:,}")
    axes.set_xlabel("nodes or tensors in the file")
    axes.set_ylabel("seconds to inspect it")
    axes.set_title("ln.inspect against size", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.15)
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "inspect-scale.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()

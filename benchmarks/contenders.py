# SPDX-License-Identifier: MIT
"""This file runs one contender in a process of its own, so that no library's threads or allocator disturb another's.

Usage: python benchmarks/contenders.py NAME THREADS. It reads requests as lines of JSON: {"cell": …} prepares a call and
answers how far its result is off; {"seconds": s} repeats the call for so long and answers the median in microseconds.
"""

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

EPS = 1e-5
Call = Callable[[], Any]


@dataclass(frozen=True)
class Cell:
    """One thing to time: an operation, its type and shape, and whether it is given an output to write to."""

    op: str
    dtype: str
    shape: tuple[int, int]
    out: bool = True
    after: str = ""  # "matmul": right after PyTorch multiplied matrices in the same process, which is not timed

    def arrays(self) -> dict[str, np.ndarray]:
        """Make x, gamma, beta, dy and out; large ones repeat two million values, which no kernel can know."""
        random = np.random.default_rng(0)
        kind = np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))
        rows, columns = self.shape
        wide = {n: random.standard_normal(columns).astype(np.float32) for n in ("gamma", "beta")}
        some = random.standard_normal(min(rows * columns, 2**21 + 7), np.float32)
        made = {"x": np.resize(some, self.shape).astype(kind), "out": np.zeros(self.shape, kind)}
        if self.op == "layer_norm_backward":
            made["dy"] = np.resize(some[::-1], self.shape).astype(kind)
        return made | wide


def right(cell: Cell, a: dict[str, np.ndarray], rows: slice) -> tuple[np.ndarray, np.ndarray]:
    """Work out in float64 what some rows come to, and how far from it an answer may be."""
    x = a["x"][rows].astype(np.float64)
    centered = x - x.mean(axis=1, keepdims=True) if cell.op != "rms_norm" else x
    rstd = 1 / np.sqrt(np.mean(centered**2, axis=1, keepdims=True) + EPS)
    near = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 8e-2}[cell.dtype]
    if cell.op != "layer_norm_backward":
        y = centered * rstd * a["gamma"] + (a["beta"] if cell.op == "layer_norm" else 0)
        return y, near * (1 + np.abs(y))
    xhat, g = centered * rstd, a["dy"][rows].astype(np.float64) * a["gamma"]
    dx = rstd * (g - g.mean(axis=1, keepdims=True) - xhat * np.mean(g * xhat, axis=1, keepdims=True))
    return dx, near * (1 + np.abs(dx))


def ours(cell: Cell, a: dict[str, np.ndarray], threads: int) -> tuple[Call, Callable[[], np.ndarray]] | None:
    """Call this package's array functions, as their users do."""
    import layernorm

    layernorm.set_num_threads(threads)
    x, gamma, beta, out = a["x"], a["gamma"], a["beta"], a["out"] if cell.out else None
    if cell.op == "layer_norm":
        return _kept(lambda: layernorm.layer_norm(x, gamma, beta, EPS, out=out))
    if cell.op == "rms_norm":
        return _kept(lambda: layernorm.rms_norm(x, gamma, eps=EPS, out=out))
    _, stats = layernorm.layer_norm(x, gamma, beta, EPS, return_stats=True)
    return _kept(lambda: layernorm.layer_norm_backward(a["dy"], x, stats, gamma)[0])


def torch(cell: Cell, a: dict[str, np.ndarray], threads: int) -> tuple[Call, Callable[[], np.ndarray]] | None:
    """Call PyTorch's own operators, which allocate what they return."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    t = {n: _tensor(torch, v) for n, v in a.items()}
    x, gamma, beta, shape = t["x"], t["gamma"].to(t["x"].dtype), t["beta"].to(t["x"].dtype), (cell.shape[1],)
    call: Call
    if cell.op == "layer_norm":
        call = lambda: torch.layer_norm(x, shape, gamma, beta, EPS)  # noqa: E731
    elif cell.op == "rms_norm":
        call = lambda: torch.rms_norm(x, shape, gamma, EPS)  # noqa: E731
    else:
        _, mean, rstd = torch.native_layer_norm(x, shape, gamma, beta, EPS)
        every, dy = [True, True, True], t["dy"]
        call = lambda: torch.ops.aten.native_layer_norm_backward(  # noqa: E731
            dy, x, shape, mean, rstd, gamma, beta, every
        )[0]
    return call, lambda: _values(torch, call())


def torch_out(cell: Cell, a: dict[str, np.ndarray], threads: int) -> tuple[Call, Callable[[], np.ndarray]] | None:
    """Call PyTorch's variant that writes to tensors it is given; it has one for layer norm alone."""
    if cell.op != "layer_norm" or not cell.out:
        return None
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    t = {n: _tensor(torch, v) for n, v in a.items()}
    x, gamma, beta, shape = t["x"], t["gamma"].to(t["x"].dtype), t["beta"].to(t["x"].dtype), (cell.shape[1],)
    _, mean, rstd = torch.native_layer_norm(x, shape, gamma, beta, EPS)
    into, run = t["out"], torch.ops.aten.native_layer_norm.out
    return lambda: run(x, shape, gamma, beta, EPS, out0=into, out1=mean, out2=rstd), lambda: _values(torch, into)


def onnxruntime(cell: Cell, a: dict[str, np.ndarray], threads: int) -> tuple[Call, Callable[[], np.ndarray]] | None:
    """Run one node with its inputs and its output bound to memory."""
    model = _onnx(cell)
    if model is None or cell.dtype == "bfloat16":
        return None
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    feeds = {"x": a["x"], "gamma": a["gamma"].astype(a["x"].dtype), "beta": a["beta"].astype(a["x"].dtype)}
    values = {i.name: ort.OrtValue.ortvalue_from_numpy(feeds[i.name]) for i in session.get_inputs()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    into = ort.OrtValue.ortvalue_from_numpy(a["out"])
    if cell.out:
        binding.bind_ortvalue_output("y", into)
    else:
        binding.bind_output("y")
    return (lambda: session.run_with_iobinding(binding)), lambda: binding.copy_outputs_to_cpu()[0]


def openvino(cell: Cell, a: dict[str, np.ndarray], threads: int) -> tuple[Call, Callable[[], np.ndarray]] | None:
    """Run the same node in OpenVINO, its tensors shared with NumPy."""
    model = _onnx(cell)
    if model is None or cell.dtype == "bfloat16":
        return None
    import openvino as ov

    hints = {"INFERENCE_NUM_THREADS": threads, "EXECUTION_MODE_HINT": "ACCURACY", "PERFORMANCE_HINT": "LATENCY"}
    core = ov.Core()
    request = core.compile_model(core.read_model(model, b""), "CPU", hints).create_infer_request()
    names = ("x", "gamma", "beta") if cell.op == "layer_norm" else ("x", "gamma")
    kept = {n: a[n].astype(a["x"].dtype, copy=False) for n in names} | {"out": a["out"]}  # its tensors do not own them
    for name in names:
        request.set_tensor(name, ov.Tensor(kept[name], shared_memory=True))
    if cell.out:
        request.set_output_tensor(ov.Tensor(kept["out"], shared_memory=True))

    def infer(kept: dict[str, np.ndarray] = kept) -> None:
        request.infer()

    return infer, lambda: np.array(request.get_output_tensor().data)


def jax(cell: Cell, a: dict[str, np.ndarray], threads: int) -> tuple[Call, Callable[[], np.ndarray]] | None:
    """Compile the two-pass formula; XLA allocates what it returns, and takes the processors that it finds."""
    import jax
    import jax.numpy as jnp

    def norm(x: Any, gamma: Any, beta: Any) -> Any:
        wide = x.astype(jnp.float32)
        centered = wide - wide.mean(-1, keepdims=True) if cell.op != "rms_norm" else wide
        y = centered * jax.lax.rsqrt((centered * centered).mean(-1, keepdims=True) + EPS) * gamma
        return (y + beta if cell.op != "rms_norm" else y).astype(x.dtype)

    x, gamma, beta = (jnp.asarray(a[n]) for n in ("x", "gamma", "beta"))
    if cell.op == "layer_norm_backward":
        dy = jnp.asarray(a["dy"])
        run = jax.jit(lambda dy, x, gamma, beta: jax.vjp(norm, x, gamma, beta)[1](dy))
        return (lambda: jax.block_until_ready(run(dy, x, gamma, beta))), lambda: np.asarray(run(dy, x, gamma, beta)[0])
    made = jax.jit(norm)
    return (lambda: made(x, gamma, beta).block_until_ready()), lambda: np.asarray(made(x, gamma, beta))


def numpy(cell: Cell, a: dict[str, np.ndarray], threads: int) -> tuple[Call, Callable[[], np.ndarray]] | None:
    """Write the two-pass formula as NumPy users do."""
    if cell.dtype != "float32" or cell.op == "layer_norm_backward":
        return None
    x, gamma, beta, out = a["x"], a["gamma"], a["beta"], a["out"] if cell.out else None

    def norm() -> np.ndarray:
        centered = x - x.mean(-1, keepdims=True) if cell.op == "layer_norm" else x
        y = np.multiply(centered, 1 / np.sqrt((centered * centered).mean(-1, keepdims=True) + np.float32(EPS)), out=out)
        y *= gamma
        if cell.op == "layer_norm":
            y += beta
        return y

    return _kept(norm)


def copy_numpy(cell: Cell, a: dict[str, np.ndarray], threads: int) -> tuple[Call, Callable[[], np.ndarray]] | None:
    """Copy x with NumPy: the bytes that a forward pass must read and write."""
    return (lambda: np.copyto(a["out"], a["x"])), lambda: a["out"]


def copy_torch(cell: Cell, a: dict[str, np.ndarray], threads: int) -> tuple[Call, Callable[[], np.ndarray]] | None:
    """Copy x with PyTorch."""
    import torch

    torch.set_num_threads(threads)
    x, out = _tensor(torch, a["x"]), _tensor(torch, a["out"])
    return (lambda: out.copy_(x)), lambda: a["out"]


def copy_threads(cell: Cell, a: dict[str, np.ndarray], threads: int) -> tuple[Call, Callable[[], np.ndarray]] | None:
    """Copy x with one memcpy a thread."""
    import numba

    @numba.njit(parallel=True)
    def copied(x: Any, out: Any, threads: int) -> None:
        for t in numba.prange(threads):
            lo, hi = t * x.size // threads, (t + 1) * x.size // threads
            out[lo:hi] = x[lo:hi]

    x, out = a["x"].view(np.uint8).reshape(-1), a["out"].view(np.uint8).reshape(-1)
    return (lambda: copied(x, out, threads)), lambda: a["out"]


CONTENDERS: dict[str, Callable[[Cell, dict[str, np.ndarray], int], Any]] = {
    "ours": ours,
    "torch": torch,
    "torch with huge pages": torch,
    "torch out=": torch_out,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "jax.jit": jax,
    "numpy": numpy,
    "copy by numpy": copy_numpy,
    "copy by torch": copy_torch,
    "copy by threads": copy_threads,
}
# What must be set before a library is loaded.
SETTINGS = {"torch with huge pages": {"THP_MEM_ALLOC_ENABLE": "1"}}


def main() -> None:
    """Answer requests until there are no more."""
    name, threads = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")  # libraries that print must not spoil the answers
    os.dup2(2, 1)
    call: Call | None = None
    before: Call | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "cell" in request:
            cell = Cell(**request["cell"] | {"shape": tuple(request["cell"]["shape"])})
            call = before = None  # and with them their arrays
            call, answer = _prepare(name, threads, cell)
            before = _product(cell, threads) if call is not None and cell.after else None
        else:
            assert call is not None
            answer = {"us": _median(call, request["seconds"], before)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _prepare(name: str, threads: int, cell: Cell) -> tuple[Call | None, dict[str, Any]]:
    arrays = cell.arrays()
    try:
        made = CONTENDERS[name](cell, arrays, threads)
    except ImportError as fault:
        return None, {"not": f"{fault.name} is not installed"}
    except Exception as fault:  # a library that has no such kernel says so in its own way
        return None, {"not": f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"}
    if made is None or (cell.after and name not in ("ours", "torch", "copy by numpy")):
        return None, {"not": "it has no such operation"}
    call, result = made
    call()
    given = np.asarray(result())
    if name.startswith("copy"):
        return call, {"off": 0.0 if given.tobytes() == arrays["x"].tobytes() else float("inf")}
    rows = slice(0, min(cell.shape[0], max(1, 2**18 // cell.shape[1])))
    exact, allowed = right(cell, arrays, rows)
    return call, {"off": float(np.max(np.abs(given[rows].astype(np.float64) - exact) / allowed))}


def _median(call: Call, seconds: float, before: Call | None = None) -> float:
    """Repeat a call in samples of at least 50 µs, or of one right after another, and give the median of its time."""
    clock, times = time.perf_counter_ns, []
    call()
    start = clock()
    call()
    samples = 1 if before is not None else max(1, 50_000 // max(1, clock() - start))
    end = clock() + int(seconds * 1e9)
    while not times or clock() < end:
        if before is not None:
            before()
        start = clock()
        for _ in range(samples):
            call()
        times.append((clock() - start) / samples)
    return statistics.median(times) / 1000


def _product(cell: Cell, threads: int) -> Call:
    """Make a matrix product of PyTorch, as a model does before its norm."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    rows, columns = cell.shape
    a, b, out = torch.ones(rows, columns), torch.ones(columns, columns), torch.empty(rows, columns)
    return lambda: torch.mm(a, b, out=out)


def _kept(call: Callable[[], np.ndarray]) -> tuple[Call, Callable[[], np.ndarray]]:
    return call, call


def _onnx(cell: Cell) -> bytes | None:
    if cell.op == "layer_norm_backward":
        return None
    from onnx import TensorProto, helper

    kind = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}.get(cell.dtype, TensorProto.BFLOAT16)
    layer = cell.op == "layer_norm"
    names = ["x", "gamma", *(["beta"] if layer else [])]
    shapes = {"x": cell.shape, "gamma": cell.shape[1:], "beta": cell.shape[1:]}
    node = helper.make_node("LayerNormalization" if layer else "RMSNormalization", names, ["y"], axis=-1, epsilon=EPS)
    inputs = [helper.make_tensor_value_info(n, kind, shapes[n]) for n in names]
    graph = helper.make_graph([node], "norm", inputs, [helper.make_tensor_value_info("y", kind, cell.shape)])
    opset = helper.make_opsetid("", 17 if layer else 23)
    return bytes(helper.make_model(graph, opset_imports=[opset], ir_version=10).SerializeToString())


def _tensor(torch: Any, array: np.ndarray) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _values(torch: Any, tensor: Any) -> np.ndarray:
    return np.asarray(tensor.float().numpy())


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()

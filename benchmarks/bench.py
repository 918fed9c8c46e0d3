# SPDX-License-Identifier: MIT
"""This file times every operation, type and shape against all installed peers and a copy of the same bytes.

Usage: python benchmarks/bench.py [--quick] [--json FILE] [--only OP], which takes seven minutes and prints a table; and
python benchmarks/bench.py --report RUN.json ..., which writes the medians of several runs to docs/performance.md, its
plots and the README's table.

Each contender lives in a process of its own (`contenders.py`). In every round each has its turn: a pause, so that
threads of the one before stop spinning, then the same call over and over for 40 ms, of which the median is
taken. A cell is the least of these over the rounds: shared machines run at two speeds, some 1.7 apart, and change
between them within seconds; a median over rounds would compare slow rounds of one with fast rounds of another.
"""

import argparse
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import matplotlib as mpl
from contenders import CONTENDERS, SETTINGS, Cell

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "layernorm"  # the same numbers make the same file
from matplotlib import pyplot as plt  # noqa: E402

ROOT = Path(__file__).parents[1]
THREADS, PAUSE, SECONDS, ROUNDS = 2, 0.03, 0.04, 4
SHAPES = [(1, 768), (8, 768), (32, 768), (512, 768), (4096, 768), (65536, 128), (64, 65536), (4096, 4096)]
HUGE = [(4096, 4096), (16384, 4096)]
CELLS = [
    *(Cell(op, "float32", shape) for op in ("layer_norm", "rms_norm") for shape in SHAPES),
    Cell("layer_norm", "float32", HUGE[1]),
    *(Cell("layer_norm", "float32", shape, out=False) for shape in HUGE),
    *(Cell(op, t, s) for t in ("float16", "bfloat16") for op in ("layer_norm", "rms_norm") for s in SHAPES),
    *(Cell("layer_norm_backward", "float32", shape, out=False) for shape in SHAPES),
    *(Cell("layer_norm", "float32", (rows, 768), after="matmul") for rows in (32, 512, 4096)),
]
CLOSE = 1.1
"""Cells whose ratio is below it are named: they are too close to call on a shared machine."""
QUICK = [(1, 768), (512, 768), (4096, 4096)]
# One line over sizes: rows of a thousand values, from one row to a hundred thousand.
LINE = [Cell("layer_norm", "float32", (10**k, 1000)) for k in range(6)]
PACKAGES = ("layernorm", "numpy", "numba", "torch", "onnxruntime", "openvino", "jax")


class Worker:
    """One contender in its own process."""

    def __init__(self, name: str) -> None:
        threads = {n: str(THREADS) for n in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")}
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("contenders.py")), name, str(THREADS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | threads | SETTINGS.get(name, {}),
        )  # fmt: skip

    def tell(self, **request: Any) -> None:
        """Send a request, which it may be too dead to read."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer; a process that died says so."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"not": f"it died with {self.process.wait()}"}


@contextmanager
def workers(names: Sequence[str]) -> Iterator[list[Worker]]:
    """Start contenders, and stop them whatever happens."""
    started = [Worker(name) for name in names]
    try:
        yield started
    finally:
        for worker in started:
            worker.process.kill()
            worker.process.communicate()


def measured(cell: Cell, among: list[Worker], rounds: int) -> dict[str, Any]:
    """Time one cell on all contenders in turns."""
    times: dict[str, list[float]] = {}
    refused = {}
    able = []
    for worker in among:  # nothing is timed yet: they may make and check their arrays side by side
        worker.tell(cell=asdict(cell))
    for worker in among:
        answer = worker.answer()
        if answer.get("off", math.inf) <= 1:
            able.append(worker)
        else:
            refused[worker.name] = answer.get("not", f"its result is {answer.get('off')} times the error allowed")
    for _ in range(rounds):
        for worker in able:
            time.sleep(PAUSE)
            worker.tell(seconds=SECONDS)
            times.setdefault(worker.name, []).append(worker.answer().get("us", math.inf))
    least = {name: min(t) for name, t in times.items()}
    copies = {n.removeprefix("copy by "): us for n, us in least.items() if n.startswith("copy")}
    copy_by = min(copies, key=lambda n: copies[n]) if copies else None
    return {
        "op": cell.op, "dtype": cell.dtype, "shape": list(cell.shape), "threads": THREADS, "out": cell.out,
        "after": cell.after, "ours_us": least.get("ours"), "copy_us": copies.get(copy_by or ""), "copy_by": copy_by,
        "peers": {n: us for n, us in least.items() if n != "ours" and not n.startswith("copy")},
        "spread": {n: [min(t), max(t)] for n, t in times.items()}, "not": refused,
    }  # fmt: skip


def starts() -> dict[str, float]:
    """Time processes from their start to their first result, in seconds: the median of five, and of three cold ones."""
    ours = "import numpy, layernorm; layernorm.layer_norm(numpy.ones((4, 768), 'float32'))"
    alone = f"import sys; sys.modules['scipy'] = None; {ours}"  # which Numba imports where it is installed
    lines = {"numpy alone": "import numpy", "torch": "import torch; torch.layer_norm(torch.ones(4, 768), (768,))"}
    with tempfile.TemporaryDirectory() as cache:
        found = {"ours, cold": statistics.median(_start(ours, f"{cache}/{i}") for i in range(3))}
        _start(ours, cache)
        found["ours, warm"] = statistics.median(_start(ours, cache) for _ in range(5))
        found["ours, warm, where SciPy is not installed"] = statistics.median(_start(alone, cache) for _ in range(5))
        return found | {n: statistics.median(_start(line, cache) for _ in range(5)) for n, line in lines.items()}


def _start(code: str, cache: str) -> float:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"NUMBA_CACHE_DIR": cache}
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began if done.returncode == 0 else math.nan


def allocated() -> dict[str, int]:
    """Count the bytes of memory that one call on 4096×4096 float32 adds to the process, at their most."""
    code = """
import numpy as np, layernorm as ln
def resident(which):
    return int(next(line for line in open("/proc/self/status") if line.startswith(which)).split()[1]) * 1024
x = np.ones((4096, 4096), np.float32); out = np.ones_like(x); gamma = np.ones(4096, np.float32)
_, stats = ln.layer_norm(x, gamma, out=out, return_stats=True); ln.layer_norm_backward(x[:64], x[:64], ln.Stats(*(
    s[:64] for s in stats)), gamma)
kept = []
for name, call in {"with out=": lambda: ln.layer_norm(x, gamma, out=out), "without": lambda: ln.layer_norm(x, gamma),
                   "without, when the last result is gone": lambda: ln.layer_norm(x, gamma),
                   "backward, another result held": lambda: ln.layer_norm_backward(x, x, stats, gamma)}.items():
    before = resident("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")  # the most begins anew
    result = call(); print(name, max(0, resident("VmHWM") - before), sep="|")
    kept = [result] if name.endswith("gone") else []; del result
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return {name: int(size) for name, size in (line.split("|") for line in done.stdout.splitlines())}


def run(cells: list[Cell], line: list[Cell], rounds: int) -> dict[str, Any]:
    """Time everything once."""
    document: dict[str, Any] = {
        "machine": machine(), "versions": versions(), "threads": THREADS, "commit": commit(), "load": os.getloadavg(),
        "began": datetime.now(UTC).isoformat(timespec="seconds"), "cells": [],
    }  # fmt: skip
    with workers(list(CONTENDERS)) as among:
        for cell in cells:
            document["cells"].append(measured(cell, among, rounds))
            sys.stderr.write(said(document["cells"][-1]) + "\n")
    with workers(["ours", "torch", "copy by numpy"]) as among:
        document["line"] = [measured(cell, among, rounds) for cell in line]
    return document | {"starts_s": starts(), "allocated_bytes": allocated()}


def said(cell: dict[str, Any]) -> str:
    """Say one cell in a line."""
    name, us = fastest(cell)
    figures = [f"{n} {'-' if t is None else f'{t:.1f}'} us" for n, t in (("ours", cell["ours_us"]), (name, us))]
    return f"{label(cell)}: {', '.join(figures)}"


def fastest(cell: dict[str, Any]) -> tuple[str, float]:
    """Give the fastest peer and its time."""
    peers = {n: us for n, us in cell["peers"].items() if us is not None}
    name = min(peers, key=lambda n: peers[n], default="")
    return name, peers.get(name, math.nan)


def span(cell: dict[str, Any]) -> str:
    """Write the least and the greatest ratio of several runs."""
    low, high = min(cell.get("ratios", [0])), max(cell.get("ratios", [0]))
    return "" if low == high else f" ({low:.2f} to {high:.2f})"


def label(cell: dict[str, Any]) -> str:
    """Name a cell."""
    rows, columns = cell["shape"]
    without = "" if cell["out"] or "backward" in cell["op"] else ", no out="
    return f"{cell['op']} {cell['dtype']} {rows}×{columns}{without}{' after a matmul' if cell['after'] else ''}"


def ratio(cell: dict[str, Any]) -> float:
    """Give how many times as long the fastest peer takes; of runs the median, for only times of one run compare."""
    return statistics.median(cell["ratios"]) if "ratios" in cell else fastest(cell)[1] / cell["ours_us"]


def of_copy(cell: dict[str, Any]) -> float:
    """Give ours in units of the copy, in the same way."""
    return statistics.median(cell["of_copy"]) if "of_copy" in cell else cell["ours_us"] / cell["copy_us"]


def mean(cells: list[dict[str, Any]]) -> float:
    """Give the geometric mean of the ratios."""
    return math.exp(statistics.mean(math.log(ratio(c)) for c in cells))


def merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Take the median of each figure over whole runs."""
    whole = dict(runs[-1])
    for part in ("cells", "line"):
        whole[part] = [_median_cell([r[part][i] for r in runs]) for i in range(len(runs[0][part]))]
    for part in ("starts_s", "allocated_bytes"):
        whole[part] = {n: statistics.median(r[part][n] for r in runs) for n in runs[0][part]}
    return whole | {"runs": len(runs)}


def _median_cell(same: list[dict[str, Any]]) -> dict[str, Any]:
    first = same[0]
    assert all(label(c) == label(first) for c in same)
    peers = {n: statistics.median(c["peers"].get(n, math.inf) for c in same) for n in first["peers"]}
    figures = {n: statistics.median(c[n] for c in same) for n in ("ours_us", "copy_us")}
    spans = {"ratios": [ratio(c) for c in same], "of_copy": [of_copy(c) for c in same]}
    return first | figures | {"peers": peers, "copy_by": " or ".join(sorted({c["copy_by"] for c in same}))} | spans


# -- tables and plots ---------------------------------------------------------------------------------------


def group_of(cell: dict[str, Any]) -> str:
    """Say under which title a cell stands."""
    if cell["after"]:
        return "Right after a matrix product of PyTorch in the same process"
    if "backward" in cell["op"]:
        return "Backward"
    if not cell["out"] or tuple(cell["shape"]) == HUGE[-1]:
        return "Above the caches"
    return f"Forward, {cell['dtype']}"


def tables(whole: dict[str, Any]) -> str:
    """Write a table for every group of cells, with its geometric mean."""
    parts = []
    for title in dict.fromkeys(group_of(c) for c in whole["cells"]):
        cells = [c for c in whole["cells"] if group_of(c) == title]
        rows = [["", "ours, µs", "fastest peer, µs", "peer / ours", "copy, µs", "ours / copy", "others, µs"]]
        for c in cells:
            name, us = fastest(c)
            others = ", ".join(f"{n} {v:.4g}" for n, v in sorted(c["peers"].items(), key=lambda p: p[1]) if n != name)
            rows.append([
                label(c), f"{c['ours_us']:.4g}", f"{us:.4g} {name}", f"**{ratio(c):.2f}**{span(c)}",
                f"{c['copy_us']:.4g} {c['copy_by']}", f"{of_copy(c):.2f}", others,
            ])  # fmt: skip
        by_op = {op: [c for c in cells if c["op"] == op] for op in dict.fromkeys(c["op"] for c in cells)}
        apart = "; ".join(f"{op} {mean(those):.2f}" for op, those in by_op.items()) if len(by_op) > 1 else ""
        close = ", ".join(f"{label(c)} ({ratio(c):.2f})" for c in sorted(cells, key=ratio) if ratio(c) < CLOSE)
        parts.append(
            f"### {title}\n\n{markdown(rows)}\n\nGeometric mean of peer / ours: **{mean(cells):.2f}**"
            f"{f' ({apart})' if apart else ''}. Below {CLOSE}: {close or 'none'}."
        )
    return "\n\n".join(parts)


def around(whole: dict[str, Any]) -> str:
    """Write what surrounds a call."""
    starts = [["from the start of a process to its first result", "s"]]
    starts += [[name, f"{s:.2f}"] for name, s in whole["starts_s"].items()]
    sizes = [["memory that one call on 4096×4096 float32 (64 MiB) adds to the process", "MiB"]]
    sizes += [[name, f"{size / 2**20:.1f}"] for name, size in whole["allocated_bytes"].items()]
    return f"{markdown(starts)}\n\n{markdown(sizes)}"


def first_table(whole: dict[str, Any]) -> str:
    """Write the README's table: layer norm, float32, forward and backward."""
    rows = [["layer norm, float32", "ours, µs", "fastest peer, µs", "peer / ours", "a copy, µs"]]
    for c in whole["cells"]:
        if c["dtype"] == "float32" and not c["after"] and c["op"] != "rms_norm":
            name, us = fastest(c)
            title = label(c).replace("layer_norm_backward float32", "backward").replace("layer_norm float32", "forward")
            ours, copy = f"{c['ours_us']:.3g}", f"{c['copy_us']:.3g}"
            rows.append([title, ours, f"{us:.3g} {name}", f"{ratio(c):.2f}{span(c)}", copy])
    slower = [f"{label(c)} ({ratio(c):.2f})" for c in whole["cells"] if ratio(c) < 1]
    close = [f"{label(c)} ({ratio(c):.2f})" for c in whole["cells"] if 1 <= ratio(c) < CLOSE]
    lost = (
        f" Of all {len(whole['cells'])} cells a peer is faster in: {', '.join(slower) or 'none'}; ours is less than "
        f"{CLOSE} times as fast in: {', '.join(close) or 'none'}."
    )
    return f"{markdown(rows)}\n\n{whole['machine']}; {said_versions(whole)}. {said_runs(whole)}.{lost}"


def draw(whole: dict[str, Any], folder: Path) -> None:
    """Draw how long each contender takes against ours, and the line over sizes."""
    cells = [c for c in whole["cells"] if not c["after"]]
    names = sorted({n for c in cells for n in c["peers"]})
    colors = dict(zip(names, plt.get_cmap("tab10").colors, strict=False))
    figure, axes = plt.subplots(figsize=(9.5, 0.26 * len(cells) + 1.4))
    for i, c in enumerate(cells):
        axes.plot([1], [i], "k|", ms=11, mew=2)
        axes.plot([c["copy_us"] / c["ours_us"]], [i], marker="x", color="0.55", ms=5)
        for n, us in c["peers"].items():
            axes.plot([us / c["ours_us"]], [i], "o", color=colors[n], ms=4)
    handles = [plt.Line2D([], [], marker="o", ls="", color=colors[n], label=n) for n in names]
    handles += [plt.Line2D([], [], marker="x", ls="", color="0.55", label="a copy")]
    axes.axvline(1, color="black", lw=1)
    axes.set(xscale="log", yticks=range(len(cells)), yticklabels=[label(c) for c in cells], ylim=(len(cells), -1))
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlabel("time, in units of ours: to the right of the line is slower than ours")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(handles=handles, loc="upper center", ncols=5, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.6 / figure.get_figheight()))
    figure.savefig(folder / "performance.svg", metadata={"Date": None})
    plt.close(figure)
    figure, axes = plt.subplots(figsize=(7, 4.2))
    sizes = [math.prod(c["shape"]) for c in whole["line"]]
    kinds = {"layernorm": [c["ours_us"] for c in whole["line"]], "a copy": [c["copy_us"] for c in whole["line"]],
             "torch": [c["peers"].get("torch", math.nan) for c in whole["line"]]}  # fmt: skip
    last = sorted(kinds, key=lambda n: kinds[n][-1])
    for (name, times), color in zip(kinds.items(), ("black", "0.6", "tab:red"), strict=True):
        axes.plot(sizes, times, marker="o", ms=3, color=color)
        # lines may end in one place; the lowest is named below its end, the others above theirs
        axes.annotate(f" {name}", (sizes[-1], times[-1]), color=color, va="top" if name == last[0] else "bottom")
    axes.set(xscale="log", yscale="log", xlabel="values, in rows of 1000", ylabel="µs a call")
    axes.set_title("Layer norm, float32, out= given", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(folder / "performance-sizes.svg", metadata={"Date": None})
    plt.close(figure)


def markdown(rows: list[list[str]]) -> str:
    """Write rows of cells as a table."""
    head, *body = [" | ".join(row) for row in rows]
    return "\n".join([f"| {head} |", "|" + "---|" * len(rows[0]), *(f"| {line} |" for line in body)])


def machine() -> str:
    """Say what it runs on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {count} processors, {THREADS} threads; {platform.system()} {platform.machine()}"


def versions() -> dict[str, str]:
    """Find the versions of what is timed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """Name the commit that is timed, so that a run can be laid beside its kernels."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=False).stdout.strip() or "unknown"


def said_versions(whole: dict[str, Any]) -> str:
    """Say them in a line."""
    return ", ".join(f"{name} {number}" for name, number in whole["versions"].items())


def said_runs(whole: dict[str, Any]) -> str:
    """Say of how many runs the figures are."""
    if whole["runs"] == 1:
        return "One whole run"
    return (
        f"Medians of {whole['runs']} whole runs; a ratio is the median of the runs' own, so not the quotient of the "
        "times beside it; the least and the greatest in brackets"
    )


def between(text: str, name: str, content: str) -> str:
    """Put generated content between its two marks."""
    marks = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(marks[0])}.*?{re.escape(marks[1])}", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"there are no marks {marks[0]} and {marks[1]} to write between.")
    return pattern.sub(lambda _: f"{marks[0]}\n\n{content}\n\n{marks[1]}", text)


def report(whole: dict[str, Any], root: Path) -> None:
    """Write docs/performance.md's tables and plots, and the README's table."""
    draw(whole, root / "docs")
    head = f"{whole['machine']}; {said_versions(whole)}. {said_runs(whole)}."
    contents = {
        "docs/performance.md": {"tables": f"{head}\n\n{tables(whole)}", "around": around(whole)},
        "README.md": {"speed": first_table(whole)},
    }
    for name, parts in contents.items():
        text = (root / name).read_text(encoding="utf-8")
        for mark, content in parts.items():
            text = between(text, mark, content)
        (root / name).write_text(text, encoding="utf-8")


def main(words: list[str] | None = None) -> None:
    """Time, or report what was timed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three shapes, two rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the document there")
    parser.add_argument("--only", metavar="OP", help="layer_norm, rms_norm or layer_norm_backward")
    parser.add_argument("--report", nargs="+", type=Path, metavar="RUN.json", help="write the pages from these runs")
    options = parser.parse_args(words)
    if options.report:
        report(merged([json.loads(path.read_text(encoding="utf-8")) for path in options.report]), ROOT)
        return
    cells = [c for c in CELLS if options.only in (None, c.op) and (not options.quick or c.shape in QUICK)]
    document = run(cells, LINE[:3] if options.quick else LINE, 2 if options.quick else ROUNDS)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    whole = merged([document])
    sys.stdout.write(f"{tables(whole)}\n\n{around(whole)}\n")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: MIT
"""This file writes docs/scoreboard.md and its plot: every installed implementation, graded by the command line.

Usage: python benchmarks/scoreboard.py [NAME ...] [--full] [--folder docs]. All of them take some ten minutes, most of
those compiling.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import matplotlib as mpl
import numpy as np

from layernorm.conformance.conform import UNIT
from layernorm.conformance.known import KNOWN, installed, known
from layernorm.conformance.oracle import error, forward, ulp
from layernorm.conformance.properties import PROPERTIES
from layernorm.conformance.replays import REPLAYS
from layernorm.conformance.targets import Target, told
from layernorm.spec.errors import MissingExtraError

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "layernorm"  # the same numbers make the same file
from matplotlib import pyplot as plt  # noqa: E402

WIDTH, ROWS = 768, 16
OFFSETS = [0.0, *(10.0**k for k in np.arange(0, 7.01, 0.5))]
PAGE = """# Scoreboard

Installed implementations of layer norm and RMS norm, graded by `layernorm conform` against exact answers. **Ours is
graded by the same code**, in the same run, as every other row. `make scoreboard` generates this page: no number in it
was typed by hand, and all of them are for these versions on this machine only.

What is allowed is what this project promises of its own kernels (`layernorm explain exact` and the other pages derive
it): rows far from zero, near the ends of their type and of one value included. Nobody else promised that. To fail here
is to be off on such a row, not to be unfit for a model; the case says which row.

{machine}

{rows_are}

![The largest error of each implementation against the offset of its input](scoreboard.svg)

The input of the plot: {rows} rows of {width} float32 normal deviates of standard deviation 1, moved by the offset; the
error is the largest over the rows, in ulp of the row's largest exact output. A cross is an answer that is not finite;
lines that coincide hide each other.

## Layer norm

{layer}

## RMS norm

{rms}

## Public reports, replayed

Each row runs the numbers of one public report on every implementation, whichever of them the report was about.
**still**: the answer is not finite, or its error is at least some half of the reported one. · : it is not. n/a: it
cannot be asked, for its types, its norms or its want of gradients. `python benchmarks/scoreboard.py NAME --folder out`
replays them on one.

{replays}

## To dispute a grade

1. Run the command of the row. A grade that does not come back on your machine is worth a report with both outputs.
2. A property fails on one input, which has a name: `layernorm conform TARGET --only PROPERTY --case NAME` runs it
   alone, and `--save FILE.npz` writes its worst row: x, gamma, beta, the answer, and the exact one. Check that one
   with any arithmetic you trust; `tests/conformance/test_oracle.py` checks ours against mpmath.
3. If the exact answer is right and the bound is not: `layernorm explain PROPERTY` says where the bound comes from. If
   an implementation is called in another way than its authors would, its wrapper is at fault: they are the files of
   `src/layernorm/conformance/implementations/`, some lines each.
4. Open an issue with the name of the case. A mended wrapper, bound or oracle changes every row, ours included.
"""


def main(words: list[str] | None = None) -> None:
    """Grade, replay, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="all cases instead of those of --quick")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[1] / "docs")
    parser.add_argument("names", nargs="*", metavar="NAME", help="grade these only")
    said = parser.parse_args(words)
    if unheard := [name for name in said.names if name not in KNOWN]:
        parser.error(f"{', '.join(unheard)}: not known; known are {', '.join(KNOWN)}")
    said.folder.mkdir(parents=True, exist_ok=True)  # before the minutes of grading, for it may not be possible
    targets, missing = installed("layer")
    targets = {name: t for name, t in targets.items() if name in (said.names or KNOWN)}
    graded = {norm: grades(norm, list(targets), said.full) for norm in ("layer", "rms")}
    versions = {name: str(document["version"]) for name, document in graded["layer"].items()}
    draw(targets, said.folder / "scoreboard.svg")
    page = PAGE.format(
        machine=machine(versions, missing),
        rows_are="\n".join(f"* **{n}**: {KNOWN[n].what}; graded in {', '.join(t.dtypes)}" for n, t in targets.items()),
        rows=ROWS,
        width=WIDTH,
        layer=tables("layer", graded["layer"], said.full),
        rms=tables("rms", graded["rms"], said.full),
        replays=replays(list(targets)),
    )
    (said.folder / "scoreboard.md").write_text(page, encoding="utf-8")


def grades(norm: str, names: list[str], full: bool) -> dict[str, dict]:
    """Run the command of every row and read its document."""
    found = {}
    for name in names:
        if norm in KNOWN[name].norms:
            sys.stderr.write(f"{command(name, norm, full)}\n")
            line = [sys.executable, "-m", *shlex.split(command(name, norm, full)), "--json"]
            done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)
            found[name] = json.loads(done.stdout)
            if "properties" not in found[name]:
                raise SystemExit(f"{name}: {found[name]['error']['sentence']}")
    return found


def command(name: str, norm: str, full: bool) -> str:
    """Give the line that grades one row."""
    return f"layernorm conform {name}{' --norm rms' if norm == 'rms' else ''}{'' if full else ' --quick'}"


def tables(norm: str, graded: dict[str, dict], full: bool) -> str:
    """Write how many properties hold, with the command; then each property, worst in units of the allowed error."""
    rows = [["implementation", "version", "hold", "the first that fails", "command"]]
    for name, document in graded.items():
        asked = [p for p in document["properties"] if p["verdict"] != "not-applicable"]
        fails = [p for p in asked if p["verdict"] != "holds"]
        first = f"{fails[0]['name']}, at `{fails[0]['at']}`" if fails else "none"
        rows.append(
            [name, str(document["version"]), f"{len(asked) - len(fails)} of {len(asked)}", first,
             f"`{command(name, norm, full)}`"]
        )  # fmt: skip
    worst = [["property", *graded]]
    for i, name in enumerate(PROPERTIES):
        cells = [cell(document["properties"][i]) for document in graded.values()]
        worst.append([name, *cells])
    note = (
        f"The worst case of each property, over all types that are graded, in units of the {UNIT}: at most 1 holds, "
        "bold fails. Where bits must agree (determinism, rows, neighbours, layout, in-place) it is their distance in "
        "ulp of the larger. ∞ stands for NaN, for infinity, for anything but the one right answer (a constant row is "
        "exactly β), and for a wrong call that was not refused; n/a for what an implementation has no way to show."
    )
    return f"{markdown(rows)}\n\n{note}\n\n{markdown(worst)}"


def cell(p: dict) -> str:
    """Write one grade."""
    if p["verdict"] in ("not-applicable", "error"):
        return "n/a" if p["verdict"] == "not-applicable" else "**error**"
    value = float(p["worst"])
    text = (
        f"{value:.2f}" if value < 10 else "∞" if np.isinf(value) else f"{value:.1e}" if value >= 1e4 else f"{value:.0f}"
    )
    return text if p["verdict"] == "holds" else f"**{text}**"


def replays(names: list[str]) -> str:
    """Write which report is still true of whom."""
    made = cache(known)
    rows = [["report", "what was seen", *names]]
    for replay in REPLAYS:
        sys.stderr.write(f"replaying {replay.name}\n")
        cells = []
        for name in names:
            if replay.norm not in KNOWN[name].norms:
                cells.append("n/a")
                continue
            try:
                still = replay.still(made(name, replay.norm, replay.eps))
            except MissingExtraError:
                still = None
            except Exception as fault:  # one that raises costs its cell, and not the page
                sys.stderr.write(f"{name} raised on {replay.name}: {told(fault)}\n")
                cells.append("**error**")
                continue
            cells.append({None: "n/a", True: "**still**", False: "·"}[still])
        rows.append([f"[{replay.name}]({replay.link})", replay.seen, *cells])
    return markdown(rows)


def draw(targets: dict[str, Target], path: Path) -> None:
    """Draw the error against the offset, one line an implementation, with its name at its end."""
    figure, axes = plt.subplots(figsize=(9.5, 6))
    ceiling = 1e12
    curves = {name: [offset_error(t.forward, t.eps, o) for o in OFFSETS] for name, t in targets.items()}
    shown = [0.3, *OFFSETS[1:]]  # zero has no place on a logarithmic axis
    colors = [*plt.get_cmap("tab10").colors, "#393b79", "#8c6d31"]
    ends = {}
    for i, (name, curve) in enumerate(curves.items()):
        y = np.array(curve)
        style = {"lw": 1.4, "color": colors[i % len(colors)]}
        if name == "layernorm":
            style = {"lw": 3, "zorder": 5, "color": "black"}
        axes.plot(shown, np.where(np.isfinite(y), y, np.nan), marker="o", ms=3, **style)
        lost = ~np.isfinite(y)
        axes.plot(np.array(shown)[lost], np.full(lost.sum(), ceiling / 3), "x", ms=7, color=style["color"])
        ends[name] = (np.log10(min(y[-1], ceiling / 3)), style["color"])
    axes.axhline(1, color="0.6", lw=1, ls=":")
    axes.set(xscale="log", yscale="log", ylim=(0.1, ceiling), xlim=(0.25, 1.2e7))
    axes.set_xlabel("offset of the input, in its standard deviations")
    axes.set_ylabel("largest error, in ulp of the largest output")
    axes.set_title("Layer norm of float32 rows far from zero", loc="left")
    axes.set_xticks([0.3, *(10.0**k for k in range(8))], ["0", *(f"$10^{k}$" for k in range(8))])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    for name, height in spaced({n: e for n, (e, _) in ends.items()}).items():
        axes.annotate(
            name, (1.0e7, 10 ** ends[name][0]), (1.7e7, 10**height), annotation_clip=False, va="center", fontsize=9,
            color=ends[name][1], arrowprops={"arrowstyle": "-", "color": ends[name][1], "lw": 0.6},
            fontweight="bold" if name == "layernorm" else "normal",
        )  # fmt: skip
    figure.subplots_adjust(left=0.09, right=0.8, top=0.93, bottom=0.1)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def spaced(heights: dict[str, float], least: float = 0.48) -> dict[str, float]:
    """Move labels apart: those that would overlap become a group, evenly spaced about the mean of its heights."""
    groups: list[list[str]] = []
    placed: dict[str, float] = {}
    for name in sorted(heights, key=lambda n: heights[n]):
        groups.append([name])
        placed[name] = heights[name]
        while len(groups) > 1 and placed[groups[-1][0]] - placed[groups[-2][-1]] < least:
            group = groups[-2] + groups.pop()
            groups[-1] = group
            middle = sum(heights[n] for n in group) / len(group)
            placed |= {n: middle + least * (i - (len(group) - 1) / 2) for i, n in enumerate(group)}
    return placed


def offset_error(function: Callable[..., np.ndarray], eps: float, offset: float) -> float:
    """Measure one point of the plot."""
    x = (np.random.default_rng(0).standard_normal((ROWS, WIDTH)) + offset).astype(np.float32)
    exact = forward(x, eps=eps).y
    with np.errstate(all="ignore"):
        off = error(function(x), exact)
    if not np.isfinite(off).all():
        return float("inf")
    return float((off.max(axis=1) / ulp(np.abs(exact.hi).max(axis=1), "float32")).max())


def machine(versions: dict[str, str], missing: dict[str, str]) -> str:
    """Say what it ran on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    said = [f"* {model}, {len(os.sched_getaffinity(0))} processors; {platform.system()} {platform.machine()}",
            f"* Python {platform.python_version()}; "
            + ", ".join(f"{name} {version}" for name, version in versions.items())]  # fmt: skip
    return "\n".join(said + [f"* not graded here: {sentence}" for sentence in missing.values()])


def markdown(rows: list[list[str]]) -> str:
    """Write rows of cells as a table."""
    head, *body = [" | ".join(row) for row in rows]
    return "\n".join([f"| {head} |", "|" + "---|" * len(rows[0]), *(f"| {line} |" for line in body)])


if __name__ == "__main__":
    main()

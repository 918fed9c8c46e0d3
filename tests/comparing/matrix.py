# SPDX-License-Identifier: MIT
"""This file is the matrix that judges `compare`: named variants of every kind, faults in three sizes.

Usage: python tests/comparing/matrix.py [seed [every-nth]]. A model has four norms of one row of the variants. Each cell
writes it in one format and, with the fault in it, in the same or another; which two is drawn from those that can say
both. Cells, and what is expected of them, were written down before any of them was run; what no format can say is
listed.
"""

import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from comparing.variant_files import FORMATS, Model, Norm

import layernorm as ln
from layernorm.comparing.checks import CODES

FLAT, IMAGE = (2, 5, 16), (2, 8, 8, 8)
CHANNELS = "layers.{}.norm"
BLOCK = "model.layers.{}.input_layernorm"

# Rows of ln.VARIANTS: what they normalize, and how a norm is called.
ROWS = {
    "bert": (FLAT, "encoder.layer.{}.output.LayerNorm"), "cohere": (FLAT, BLOCK), "olmo": (FLAT, CHANNELS),
    "nemotron": (FLAT, BLOCK), "llama": (FLAT, BLOCK), "glm4": (FLAT, BLOCK), "olmo2": (FLAT, BLOCK),
    "gemma": (FLAT, BLOCK), "keras-layer": (FLAT, CHANNELS), "flax-layer": (FLAT, CHANNELS), "flux": (FLAT, CHANNELS),
    "pytorch-normalize": (FLAT, CHANNELS), "convnext": (IMAGE, CHANNELS),
    "pytorch-group": (IMAGE, CHANNELS), "keras-group": (IMAGE, CHANNELS), "mlx-group": (IMAGE, CHANNELS),
    "instance": (IMAGE, CHANNELS), "openvino-mvn": (IMAGE, CHANNELS), "pytorch-batch": (IMAGE, CHANNELS),
    "keras-batch": (IMAGE, CHANNELS), "onnx-batch-training": (IMAGE, CHANNELS),
}  # fmt: skip
GROUPS = 4


def drawn_model(random, row):
    """Draw four norms of a row."""
    shape, called = ROWS[row]
    spec = ln.VARIANTS[row]
    if spec.groups is not None:
        spec = replace(spec, groups=GROUPS)
    channels = shape[-1] if spec.scale_axes in ((-1,), None) else shape[1]
    norms = []
    for k in range(4):
        gamma = (random.normal(1, 0.25, channels) - spec.scale_offset).astype(np.float32)
        beta, mean = (random.normal(0, 0.3, channels).astype(np.float32) for _ in range(2))
        variance = random.uniform(0.5, 2, channels).astype(np.float32)
        stored = spec.statistics == "stored"
        norms.append(Norm(
            called.format(k), spec, gamma if spec.scale_axes is not None else None,
            beta if spec.shift_axes is not None else None, mean if stored else None, variance if stored else None,
        ))  # fmt: skip
    # BERT's names say that its norms stand after their blocks
    return Model(row, shape, tuple(norms), post=row == "bert")


# -- faults -------------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """A way to spoil a norm: its code, its size, fields of the norm or its spec to change, and whether it can be."""

    code: str
    size: str
    words: str
    changes: Callable
    wants: Callable = lambda norm: True
    dtype: str = "float32"
    before: Callable | None = None
    """What the norm has before; for faults of 16-bit models."""
    whole: bool = False
    """Whether it is of all norms at once."""


def _floor(n):
    return n.spec.eps_at.endswith("floor")


def _eps(factor):
    return lambda n, o: {"eps": factor * n.spec.eps}


def _layered(n):
    return n.spec.centered and n.spec.statistics == "input"


def _flat(n):
    return n.spec.axes == (-1,)


def _affine(n):
    return n.gamma is not None


def _shifted(n):
    return n.beta is not None


def _stored(n):
    return n.spec.statistics == "stored"


def _grouped(n):
    return n.spec.groups is not None


def _along_channels(n):
    return _affine(n) and n.spec.scale_axes == (1,) and n.spec.statistics == "input"


def _one(values, by):
    changed = values.copy()
    changed[5] += np.float32(by)
    return changed


def _times(n, factor):
    return {"gamma": (n.whole * np.float32(factor) - n.spec.scale_offset).astype(np.float32)}


_RMS, _L2 = {"centered": False, "spread": "rms"}, {"centered": False, "spread": "l2"}
_LAYER = {"centered": True, "spread": "std"}
_UNGROUPED = {"groups": None, "channel_axis": None, "group_order": None}
_HALF = {"eps": 1e-3}


def _places(n):
    return n.spec.eps_at == "variance" and n.spec.spread == "std" and _layered(n) and n.spec.variance_by == "centered"


def _sixteen(n):
    return _flat(n) and _affine(n) and n.spec.eps_at == "variance" and n.spec.variance_by == "centered"


FAULTS = (
    Fault("eps-value", "small", "3 times", _eps(3), lambda n: not _floor(n)),
    Fault("eps-value", "medium", "30 times", _eps(30), lambda n: not _floor(n)),
    Fault("eps-value", "large", "1000 times", _eps(1000), lambda n: not _floor(n)),
    Fault("eps-value", "small", "a tenth", _eps(0.1), lambda n: not _floor(n)),
    Fault("eps-value", "medium", "a floor of 1e-2", lambda n, o: {"eps": 1e-2}, _floor),
    Fault("eps-value", "large", "a floor of 1", lambda n, o: {"eps": 1.0}, _floor),
    Fault("eps-lost", "large", "0", lambda n, o: {"eps": 0.0}, lambda n: not _floor(n)),
    Fault("eps-place", "small", "a floor", lambda n, o: {"eps_at": "variance_floor"}, _places),
    Fault("eps-place", "medium", "in the sum", lambda n, o: {"eps_at": "sum"}, _places),
    Fault("eps-place", "large", "beside the root", lambda n, o: {"eps_at": "deviation"}, _places),
    Fault("eps-place", "large", "under the root", lambda n, o: {"eps_at": "variance"},
          lambda n: n.spec.eps_at == "deviation"),
    Fault("kind", "small", "x over its deviation", lambda n, o: {"centered": False}, _layered),
    Fault("kind", "medium", "rms", lambda n, o: _RMS, lambda n: n.spec.spread != "rms" and not _stored(n)),
    Fault("kind", "medium", "layer", lambda n, o: _LAYER, lambda n: n.spec.spread != "std"),
    Fault("kind", "large", "l2", lambda n, o: _L2, lambda n: n.spec.spread != "l2" and not _stored(n)),
    Fault("axes", "medium", "tokens too", lambda n, o: {"axes": (-2, -1)}, _flat),
    Fault("axes", "large", "all but the first", lambda n, o: {"axes": ("1:",)},
          lambda n: n.spec.statistics == "input" and not _grouped(n)),
    Fault("axes", "small", "one of two", lambda n, o: {"axes": (3,)}, lambda n: n.spec.axes == ("2:",)),
    Fault("axes", "medium", "the last for the second", lambda n, o: {"axes": (-1,)}, lambda n: n.spec.axes == (1,)),
    Fault("axes", "large", "the batch too", lambda n, o: {"axes": (0, "2:")}, lambda n: n.spec.axes == ("2:",)),
    Fault("axes", "large", "each example", lambda n, o: {"axes": ("2:",)},
          lambda n: n.spec.axes == (0, "2:") and not _stored(n)),
    Fault("groups", "small", "half as many", lambda n, o: {"groups": GROUPS // 2}, _grouped),
    Fault("groups", "medium", "one", lambda n, o: {"groups": 1}, _grouped),
    Fault("groups", "large", "none", lambda n, o: _UNGROUPED | {"axes": ("2:",)},
          lambda n: _grouped(n) and n.spec.channel_axis == 1),
    Fault("group-order", "large", "dealt the other way",
          lambda n, o: {"group_order": "blocked" if n.spec.group_order == "interleaved" else "interleaved"}, _grouped),
    Fault("statistics", "large", "the input's", lambda n, o: {"statistics": "input", "mean": None, "variance": None},
          _stored),
    Fault("statistics", "large", "stored",
          lambda n, o: {"statistics": "stored", "mean": o.beta.copy(), "variance": np.abs(o.gamma)},
          lambda n: n.spec.axes == (0, "2:") and not _stored(n)),
    Fault("ddof", "medium", "n - 1", lambda n, o: {"ddof": 1}, lambda n: _layered(n) and n.spec.spread == "std"),
    Fault("gamma-offset", "large", "1 more", lambda n, o: {"gamma": n.gamma + 1}, _affine),
    Fault("gamma-offset", "large", "1 less", lambda n, o: {"gamma": n.gamma - 1}, _affine),
    Fault("gamma-offset", "large", "the flag", lambda n, o: {"scale_offset": 1 - n.spec.scale_offset}, _affine),
    Fault("gamma-missing", "large", "lost", lambda n, o: {"gamma": None, "scale_axes": None, "scale_offset": 0},
          _affine),
    Fault("beta-missing", "large", "lost", lambda n, o: {"beta": None, "shift_axes": None}, _shifted),
    Fault("gamma-layout", "large", "another axis", lambda n, o: {"scale_axes": (2,)}, _along_channels),
    Fault("parameter-value", "small", "a gamma by 1e-3", lambda n, o: {"gamma": _one(n.gamma, 1e-3)}, _affine),
    Fault("parameter-value", "medium", "gamma by 5 %", lambda n, o: _times(n, 1.05), _affine),
    Fault("parameter-value", "large", "untrained",
          lambda n, o: {"gamma": np.full_like(n.gamma, 1 - n.spec.scale_offset)}, _affine),
    Fault("parameter-value", "small", "a beta by 1e-3", lambda n, o: {"beta": _one(n.beta, 1e-3)}, _shifted),
    Fault("parameter-value", "medium", "beta by 0.05", lambda n, o: {"beta": n.beta + np.float32(0.05)}, _shifted),
    Fault("parameter-value", "large", "beta 0", lambda n, o: {"beta": np.zeros_like(n.beta)}, _shifted),
    Fault("parameter-value", "small", "a mean by 1e-3", lambda n, o: {"mean": _one(n.mean, 1e-3)}, _stored),
    Fault("parameter-value", "medium", "variances over n",
          lambda n, o: {"variance": n.variance * np.float32(0.75)}, _stored),
    Fault("parameter-swapped", "large", "another's gamma", lambda n, o: {"gamma": o.gamma}, _affine),
    Fault("parameter-swapped", "large", "another's both", lambda n, o: {"gamma": o.gamma, "beta": o.beta},
          lambda n: _affine(n) and _shifted(n)),
    Fault("parameter-swapped", "large", "gamma and beta", lambda n, o: {"gamma": n.beta, "beta": n.gamma},
          lambda n: _affine(n) and _shifted(n)),
    Fault("cancellation", "large", "moments", lambda n, o: {"variance_by": "moments"},
          lambda n: _layered(n) and n.spec.variance_by == "centered" and n.spec.eps_at == "variance"),
    Fault("cancellation", "medium", "moments above 0", lambda n, o: {"variance_by": "moments_clamped"},
          lambda n: _layered(n) and n.spec.variance_by == "centered" and n.spec.eps_at == "variance"),
    Fault("cancellation", "medium", "no moments", lambda n, o: {"variance_by": "centered"},
          lambda n: n.spec.variance_by != "centered"),
    Fault("unpaired", "large", "left out", lambda n, o: {"gone": True}),
    Fault("overflow", "large", "float16", lambda n, o: {"wide": False}, _sixteen, "float16", lambda n: _HALF),
    Fault("eps-lost", "large", "1e-12 in float16", lambda n, o: {"wide": False}, _sixteen, "float16",
          lambda n: {"eps": 1e-12}),
    Fault("precision", "medium", "bfloat16", lambda n, o: {"wide": False}, _sixteen, "bfloat16", lambda n: _HALF),
    Fault("cast-order", "small", "float16", lambda n, o: {"cast_first": True}, _sixteen, "float16", lambda n: _HALF),
    Fault("cast-order", "small", "bfloat16", lambda n, o: {"cast_first": True}, _sixteen, "bfloat16", lambda n: _HALF),
    Fault("placement", "large", "after its block", lambda n, o: {},
          lambda n: _flat(n) and n.spec.spread != "l2" and n.name != ROWS["bert"][1].format(0), whole=True),
)  # fmt: skip

# Codes that no cell has, and where they are tried.
ELSEWHERE = {
    "variance-form": "it is said only where nothing changes by more than rounding: tests/comparing/test_checks.py",
    "folded": "a fact and no fault; tests/comparing/test_checks.py",
    "name-only": "a fact and no fault; tests/comparing/test_checks.py",
}
SPEC = frozenset(vars(ln.NormSpec()))


def changed(norm, changes):
    """Give a norm with fields of its own or of its spec changed."""
    of_spec = {field: value for field, value in changes.items() if field in SPEC}
    own = {field: value for field, value in changes.items() if field not in SPEC}
    return replace(norm, spec=replace(norm.spec, **of_spec), **own)


def everywhere(fault):
    """Tell whether a fault is of the epsilon that some formats say once."""
    return fault.code in ("eps-value", "eps-lost")


# -- cells --------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """One comparison: two models, their formats, and the code and the norm expected first; None if equal."""

    name: str
    group: str
    a: Model
    b: Model
    formats: tuple
    expected: tuple | None


def sayable(a, b):
    """List the pairs of formats that can say both models."""
    of_a, of_b = ([name for name, f in FORMATS.items() if f.cannot(model) is None] for model in (a, b))
    return list(itertools.product(of_a, of_b))


def prepared(random, row, fault):
    """Draw a model that a fault can be put into; None where it has no place in the row."""
    model = replace(drawn_model(random, row), dtype=fault.dtype, blocks=fault.whole)
    if fault.before is not None:
        model = replace(model, norms=tuple(changed(n, fault.before(n)) for n in model.norms))
    return model if fault.wants(model.norms[0]) else None


def spoiled(model, fault, places):
    """Give the model with the fault at each of the places."""
    norms = list(model.norms)
    for at in places:
        norms[at] = changed(norms[at], fault.changes(norms[at], model.norms[(at + 2) % 4]))
    return replace(model, norms=tuple(norms), post=model.post or fault.whole)


def single(random, each=2):
    for row, fault in itertools.product(ROWS, FAULTS):
        model = prepared(random, row, fault)
        if model is None:
            continue
        at = int(random.integers(4))
        one = spoiled(model, fault, range(4) if fault.whole else [at])
        choices = [(pair, one, 0 if fault.whole else at) for pair in sayable(model, one)]
        if everywhere(fault):
            # one epsilon for all norms is the only way in which some formats can say it
            every = spoiled(model, fault, range(4))
            choices += [(pair, every, 0) for pair in sayable(model, every) if FORMATS[pair[1]].once]
        if not choices:
            yield Cell(f"{row} {fault.code} ({fault.words})", "no format can say it", model, one, (), None)
            continue
        for k in random.permutation(len(choices))[:each]:
            pair, broken, first = choices[k]
            name = f"{row} {fault.code} ({fault.size}: {fault.words}) {'>'.join(pair)}"
            yield Cell(name, fault.code, model, broken, pair, (fault.code, first))


def double(random, count=300):
    usable = [f for f in FAULTS if f.dtype == "float32" and not f.whole]
    made = 0
    while made < count:
        row = str(random.choice(list(ROWS)))
        model = drawn_model(random, row)
        fitting = [f for f in usable if f.wants(model.norms[0])]
        one, two = (fitting[k] for k in random.choice(len(fitting), 2, replace=False))
        i, j = (int(k) for k in random.choice(4, 2, replace=False))
        # what another norm's gamma is taken for must not be spoiled itself
        if "parameter-swapped" in (one.code, two.code) and abs(i - j) == 2:
            continue
        broken = spoiled(spoiled(model, one, [i]), two, [j])
        if not (pairs := sayable(model, broken)):
            continue
        pair = pairs[int(random.integers(len(pairs)))]
        # what has no partner is said last
        first = min(((f.code == "unpaired", at, CODES.index(f.code), f.code) for f, at in ((one, i), (two, j))))
        name = f"{row} {one.code} ({one.words}) and {two.code} ({two.words}) {'>'.join(pair)}"
        yield Cell(name, "two faults", model, broken, pair, (first[3], first[1]))
        made += 1


def equal(random, count=520):
    for k in range(count):
        row = list(ROWS)[k % len(ROWS)]
        model = drawn_model(random, row)
        if k % 5 == 4 and ROWS[row][0] == FLAT and model.norms[0].gamma is not None:
            model = replace(model, blocks=True, post=model.post or bool(k % 2))
        pairs = sayable(model, model)
        pair = pairs[int(random.integers(len(pairs)))]
        yield Cell(f"{row} equal {'>'.join(pair)}", "equal", model, model, pair, None)


def cells(seed=0):
    """List every cell."""
    yield from single(np.random.default_rng([seed, 4]))
    yield from double(np.random.default_rng([seed, 5]))
    yield from equal(np.random.default_rng([seed, 6]))


def judged(cell, folder):
    """Compare one cell: whether it came out right, and what was said."""
    a, b = (
        FORMATS[kind].write(model, Path(folder) / side)
        for side, kind, model in zip("ab", cell.formats, (cell.a, cell.b), strict=True)
    )
    comparison = ln.compare(a, b)
    counting = [f for f in comparison.findings if f.severity != "info"]
    if cell.expected is None:
        return comparison.verdict == "same", (comparison.verdict, [f.code for f in counting])
    names = [norm.name for norm in comparison.compared.a.found.norms]
    if not counting:
        return False, (comparison.verdict, None, [f.code for f in comparison.findings], len(names))
    at = names.index(counting[0].a) if counting[0].a else None
    right = (counting[0].code, at) == cell.expected and len(names) == 4
    return right, (comparison.verdict, counting[0].code, at, len(names))


def main(seed=0, every=1):
    asked, right, wrong, unsaid = Counter(), Counter(), [], []
    for k, cell in enumerate(cells(seed)):
        if not cell.formats:
            unsaid.append(cell.name)
        if k % every or not cell.formats:
            continue
        with tempfile.TemporaryDirectory() as folder:
            fine, said = judged(cell, folder)
        asked[cell.group] += 1
        right[cell.group] += fine
        if not fine:
            wrong.append(f"{cell.name}: expected {cell.expected}, said {said}")
    print(*wrong, sep="\n")
    for code, why in ELSEWHERE.items():
        print(f"no cell has {code}: {why}")
    for name in unsaid:
        print(f"no format can say {name}")
    for group, count in asked.items():
        print(f"{group:20} {right[group]:5} of {count}")
    faults = [group for group in asked if group != "equal"]
    count = sum(asked[group] for group in faults)
    share = sum(right[group] for group in faults) / max(1, count)
    print(f"first cause right in {share:.1%} of {count}; {asked['equal'] - right['equal']} alarms on {asked['equal']}")
    return share >= 0.9 and right["equal"] == asked["equal"]


if __name__ == "__main__":
    sys.exit(not main(*map(int, sys.argv[1:])))

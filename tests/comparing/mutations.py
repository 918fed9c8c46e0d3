# SPDX-License-Identifier: MIT
"""This file is the matrix that judges `compare`: faults of every kind and size, one or two at once, across formats.

Usage: python tests/comparing/mutations.py [every-nth]. Each cell writes a drawn model in one format and, with the fault
in it, in another or the same, compares the two, and asks whether the first cause named is that fault, at that norm.
Equal pairs are judged by whether there is any alarm. The cells and what is expected of them were written down before
any of them was run.
"""

import itertools
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from comparing.planned import WRITERS, CannotSay, plan

import layernorm as ln
from layernorm.comparing.checks import CODES

FAMILIES = ("layer", "rms", "gemma")
EPSILONS = (1e-5, 1e-6, 1e-12)


class Fault(NamedTuple):
    """A way to spoil a norm: the code of its cause, its size in words, and fields to change, from the norm itself."""

    code: str
    size: str
    changes: object
    wants: object = lambda norm: True
    halves: bool = False
    """Whether it is one of float16 models, which ONNX alone has here."""


def _one(values, by):
    changed = values.copy()
    changed[5] += np.float32(by)
    return changed


FAULTS = (
    Fault("eps-value", "ten times", lambda n, o: {"eps": 10 * n.eps}, lambda n: n.eps >= 1e-6),
    Fault("eps-value", "a tenth", lambda n, o: {"eps": n.eps / 10}, lambda n: n.eps >= 1e-6),
    Fault("eps-value", "1e-3", lambda n, o: {"eps": 1e-3}),
    Fault("eps-value", "1e-5 for 1e-12", lambda n, o: {"eps": 1e-5}, lambda n: n.eps < 1e-10),
    Fault("eps-value", "twice", lambda n, o: {"eps": 2 * n.eps}, lambda n: n.eps >= 1e-6),
    Fault("eps-lost", "0", lambda n, o: {"eps": 0.0}),
    Fault("eps-place", "outside the root", lambda n, o: {"outside": True}),
    Fault("kind", "the other", lambda n, o: {"centered": not n.centered}),
    Fault("axes", "tokens too", lambda n, o: {"axes": (-2, -1)}),
    Fault("ddof", "n - 1", lambda n, o: {"ddof": 1}, lambda n: n.centered),
    Fault("gamma-offset", "1 more", lambda n, o: {"gamma": n.gamma + 1}),
    Fault("gamma-offset", "1 less", lambda n, o: {"gamma": n.gamma - 1}),
    Fault("gamma-missing", "lost", lambda n, o: {"gamma": None}),
    Fault("beta-missing", "lost", lambda n, o: {"beta": None}, lambda n: n.beta is not None),
    Fault("parameter-value", "one value by 1e-2", lambda n, o: {"gamma": _one(n.gamma, 1e-2)}),
    Fault("parameter-value", "all by 5 %", lambda n, o: {"gamma": n.gamma * np.float32(1.05)}),
    Fault("parameter-value", "untrained", lambda n, o: {"gamma": np.ones_like(n.gamma)}),
    Fault("parameter-value", "reversed", lambda n, o: {"gamma": n.gamma[::-1].copy()}),
    Fault("parameter-value", "one beta by 1e-2", lambda n, o: {"beta": _one(n.beta, 1e-2)},
          lambda n: n.beta is not None),
    Fault("parameter-value", "beta 0", lambda n, o: {"beta": np.zeros_like(n.beta)}, lambda n: n.beta is not None),
    Fault("parameter-swapped", "another norm's", lambda n, o: {"gamma": o.gamma}),
    Fault("parameter-swapped", "gamma and beta", lambda n, o: {"gamma": n.beta, "beta": n.gamma},
          lambda n: n.beta is not None),
    Fault("cancellation", "moments", lambda n, o: {"moments": True}, lambda n: n.centered),
    Fault("overflow", "statistics in float16", lambda n, o: {"half": True}, halves=True),
    Fault("eps-lost", "1e-12 in float16", lambda n, o: {"half": True}, lambda n: n.eps < 1e-10, halves=True),
    Fault("eps-value", "1e-3 in float16", lambda n, o: {"eps": 1e-3}, halves=True),
    Fault("kind", "the other in float16", lambda n, o: {"centered": not n.centered}, lambda n: n.beta is None,
          halves=True),
    Fault("gamma-offset", "1 more in float16", lambda n, o: {"gamma": n.gamma + 1}, halves=True),
)  # fmt: skip


class Cell(NamedTuple):
    """One comparison: what is written, and the code and norm expected first; None where nothing is wrong."""

    name: str
    a: object
    b: object
    formats: tuple
    expected: tuple | None


def spoiled(model, fault, at, everywhere):
    """Give the model with the fault at one norm, or at all of them; None where it changes nothing."""
    norms = list(model.norms)
    for k in range(len(norms)) if everywhere else [at]:
        norm, other = norms[k], model.norms[(k + 2) % len(norms)]
        if not fault.wants(norm):
            return None
        norms[k] = replace(norm, **fault.changes(norm, other))
    return replace(model, norms=tuple(norms))


def cells(seed=0):
    """List every cell: single faults, two at once, and equal pairs."""
    yield from single(np.random.default_rng([seed, 1]))
    yield from double(np.random.default_rng([seed, 2]))
    yield from equal(np.random.default_rng([seed, 3]))


def single(random):
    for family, fault, formats in itertools.product(FAMILIES, FAULTS, itertools.product(WRITERS, repeat=2)):
        if fault.halves and formats != ("onnx", "onnx"):
            continue
        eps = float(random.choice(EPSILONS))
        if not fault.wants(plan(random, family, eps).norms[0]):
            eps = 1e-12 if "1e-12" in fault.size else 1e-5
        model = plan(random, family, eps, "float16" if fault.halves else "float32")
        at = int(random.integers(len(model.norms)))
        # formats of named tensors say an epsilon and a kind once for all norms
        for everywhere in (False, True):
            broken = spoiled(model, fault, at, everywhere)
            if broken is not None and everywhere == _once(fault, formats[1]):
                first = model.norms[0 if everywhere else at].name
                name = f"{family} {fault.code} ({fault.size}) {'>'.join(formats)}"
                yield Cell(name, model, broken, formats, (fault.code, first))


def double(random, count=400):
    for k in range(count):
        family = FAMILIES[k % 3]
        formats = tuple(random.choice(list(WRITERS), 2))
        usable = [f for f in FAULTS if not f.halves]
        one, two = (usable[i] for i in random.choice(len(usable), 2, replace=False))
        model = plan(random, family, 1e-12 if "1e-12" in one.size + two.size else 1e-5)
        i, j = (int(at) for at in random.choice(len(model.norms), 2, replace=False))
        broken = model
        first = []
        for fault, at in ((one, i), (two, j)):
            everywhere = _once(fault, formats[1])
            broken = broken and _again(model, broken, fault, at, everywhere)
            first.append((0 if everywhere else at, CODES.index(fault.code), fault.code))
        if broken is not None:
            at, _, code = min(first)
            name = f"{family} {one.code} ({one.size}) and {two.code} ({two.size}) {'>'.join(formats)}"
            yield Cell(name, model, broken, formats, (code, model.norms[at].name))


def _again(model, broken, fault, at, everywhere):
    """Spoil a spoiled model, by fields that the first fault left alone; None where both change the same."""
    again = spoiled(model, fault, at, everywhere)
    if again is None:
        return None
    norms = []
    for before, one, two in zip(model.norms, broken.norms, again.norms, strict=True):
        fields = [f for f in vars(before) if getattr(two, f) is not getattr(before, f)]
        if any(getattr(one, f) is not getattr(before, f) for f in fields):
            return None
        norms.append(replace(one, **{f: getattr(two, f) for f in fields}))
    return replace(broken, norms=tuple(norms))


def equal(random, count=600):
    for k in range(count):
        family = FAMILIES[k % 3]
        formats = tuple(random.choice(list(WRITERS), 2))
        model = plan(random, family, float(random.choice(EPSILONS)))
        # a third of the pairs has one side whose file keeps 16 bits
        narrow = k % 3 == 1 and formats[1] in ("safetensors", "torch")
        yield Cell(
            f"{family} equal{' in bfloat16' if narrow else ''} {'>'.join(formats)}", model,
            replace(model, dtype="bfloat16") if narrow else model, formats, None,
        )  # fmt: skip


def _once(fault, written):
    return fault.code in ("eps-value", "eps-lost", "kind") and written in ("safetensors", "torch", "gguf")


def judged(cell, folder):
    """Compare one cell: whether it came out right, and what was said; None where a format cannot say it."""
    try:
        a, b = (
            WRITERS[kind](model, Path(folder) / side)
            for side, kind, model in zip("ab", cell.formats, (cell.a, cell.b), strict=True)
        )
    except CannotSay:
        return None
    comparison = ln.compare(a, b)
    counting = [f for f in comparison.findings if f.severity != "info"]
    if cell.expected is None:
        return comparison.verdict == "same", (comparison.verdict, [f.code for f in counting])
    if not counting:
        return False, (comparison.verdict, None, [f.code for f in comparison.findings])
    code, name = cell.expected
    at = [pair.a.name for pair in comparison.pairs].index(counting[0].a) if counting[0].a else None
    right = counting[0].code == code and at == [norm.name for norm in cell.a.norms].index(name)
    return right, (comparison.verdict, at, counting[0].code)


def main(every=1):
    right, asked, wrong = Counter(), Counter(), []
    for k, cell in enumerate(cells()):
        if k % every:
            continue
        with tempfile.TemporaryDirectory() as folder:
            outcome = judged(cell, folder)
        if outcome is None:
            continue
        kind = "equal" if cell.expected is None else "two faults" if " and " in cell.name else cell.expected[0]
        asked[kind] += 1
        right[kind] += outcome[0]
        if not outcome[0]:
            wrong.append((cell.name, cell.expected, outcome[1]))
    for name, expected, said in wrong:
        print(f"{name}: expected {expected}, said {said}")
    for kind, count in asked.items():
        print(f"{kind:20} {right[kind]:5} of {count}")
    faults = [kind for kind in asked if kind != "equal"]
    share = sum(right[k] for k in faults) / max(1, sum(asked[k] for k in faults))
    print(f"first cause right in {share:.1%} of {sum(asked[k] for k in faults)}")
    return share >= 0.9 and right["equal"] == asked["equal"]


if __name__ == "__main__":
    sys.exit(not main(*map(int, sys.argv[1:])))

# SPDX-License-Identifier: MIT
"""This package lists the backends, fastest first; each is one file with `refuses`, `forward` and `backward`."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from layernorm.spec.errors import SpecError
from layernorm.spec.norm_spec import NormSpec

BACKENDS = ("cpu", "reference")


def choose(spec: NormSpec, dtype: str, wanted: str | None = None) -> tuple[ModuleType, str]:
    """Pick the first backend that can run a spec, and say why the ones before it cannot.

    Raises:
        SpecError: the wanted backend is unheard of, or cannot run this spec.
    """
    if wanted is not None and wanted not in BACKENDS:
        raise SpecError(f"backend={wanted!r} is not one of {', '.join(BACKENDS)}; name one, or leave it out.")
    refusals: list[str] = []
    for name in BACKENDS if wanted is None else (wanted,):
        # loaded here, not with the package: importing Numba costs 0.1 to 0.3 s
        backend = import_module(f"layernorm.ops.backends.{name}")
        refusal = backend.refuses(spec, dtype)
        if refusal is None:
            return backend, "; ".join(refusals)
        refusals.append(f"{name}: {refusal}")
    raise SpecError(f'no backend can run this norm: {"; ".join(refusals)}. backend="reference" always works.')

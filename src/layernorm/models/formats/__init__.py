# SPDX-License-Identifier: MIT
"""This package reads model files: one file a format, each with `recognizes(path, head)` and `read(path)`.

`read_model` asks them in order. A format decodes bytes and knows no architecture.
"""

import importlib
from pathlib import Path

from layernorm.models.model_file import ModelFile
from layernorm.spec.errors import FileError, UnsupportedError

FORMATS = ("card", "onnx", "safetensors", "gguf", "torch_export", "torch_file", "keras", "tflite")
# What models are called; their formats go by what is in a file, and this only helps to find one.
SUFFIXES = (".onnx", ".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pt2", ".gguf", ".keras", ".h5", ".tflite")
# As much of a file as a format may look at to say whether it is its own.
HEAD = 4096


def read_model(path: str | Path) -> ModelFile:
    """Read a model from a file or a folder.

    Raises:
        FileError: there is no such file, or it is cut off or lies about itself.
        UnsupportedError: no format knows it.
        MissingExtraError: the package that reads it is not installed.
    """
    path = Path(path)
    try:
        # reading a pipe would wait for whoever writes to it
        head = _head(path) if path.is_file() or not path.exists() else b""
    except OSError as error:
        raise FileError(
            f"{path}: {error.strerror or error}; pass a model file or a folder that holds one.", str(path)
        ) from None
    except ValueError:  # a NUL, or what no encoding has
        raise FileError(
            f"{str(path)!a}: no file can bear this name; pass a model file or a folder that holds one.",
            ascii(str(path)),
        ) from None
    if not path.is_dir() and not path.is_file():
        raise FileError(f"{path}: it is a device or a pipe; pass a model file or a folder that holds one.", str(path))
    if not path.is_dir() and not head:
        raise FileError(f"{path}: the file is empty; fetch it again.", str(path))
    for name in FORMATS:
        module = importlib.import_module(f"layernorm.models.formats.{name}")
        if module.recognizes(path, head):
            model: ModelFile = module.read(path)
            return model
    if path.is_dir():
        raise UnsupportedError(_about_folder(path), str(path))
    raise UnsupportedError(
        f"{path}: none of the formats that are read here (ONNX, safetensors, PyTorch, GGUF, Keras, TFLite); "
        "export the model to one of them.", str(path)
    )  # fmt: skip


def _about_folder(folder: Path) -> str:
    """Say what of a folder could be passed, where no format takes it for a model of its own."""
    files = (*folder.glob("*"), *folder.glob("*/*"))
    models = sorted(str(file.relative_to(folder)) for file in files if file.suffix.lower() in SUFFIXES)
    if not models:
        return f"{folder}: no {', '.join(SUFFIXES)} file is in it, nor in a folder in it; pass a model file."
    more = f" and {len(models) - 3} more" if len(models) > 3 else ""
    return f"{folder}: no file in it has the usual name of a model; pass one of them: {', '.join(models[:3])}{more}."


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD)

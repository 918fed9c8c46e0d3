# SPDX-License-Identifier: MIT
"""This file looks into a model file, or a model in memory, and keeps what was found together with how to say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layernorm.models.model_file import ModelFile
from layernorm.models.norm_record import Finding, Found, NormRecord, Unidentified
from layernorm.spec.errors import ArgumentError, FileError


@dataclass(frozen=True, repr=False)
class Inspection:
    """The norms of one model; it prints as a table."""

    model: ModelFile
    found: Found

    @property
    def norms(self) -> Sequence[NormRecord]:
        """Every norm, in the order in which they run."""
        return self.found.norms

    @property
    def unidentified(self) -> Sequence[Unidentified]:
        """What may be a norm, and why it could not be told."""
        return self.found.unidentified

    @property
    def risks(self) -> Sequence[Finding]:
        """What may go wrong, the worst first."""
        return self.found.risks

    def document(self, values: bool = False) -> dict[str, Any]:
        """Give the document layernorm.inspect/1, with the parameters' `values` if they are wanted."""
        from layernorm.report.documents import inspect_document

        return inspect_document(self.found, self.model, values)

    def text(self, width: int = 80) -> str:
        """Write a table for lines of `width` characters."""
        from layernorm.report.norm_table import inspect_text

        return inspect_text(self.found, self.model, width)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Inspection of {self.model.path}: {len(self.norms)} norms, {len(self.risks)} risks>"


def inspect(source: Any) -> Inspection:
    """Find every norm of a model: a path to a file or folder, or a torch.nn.Module.

    >>> import layernorm as ln
    >>> ln.inspect("no-such-file.onnx")
    Traceback (most recent call last):
    layernorm.spec.errors.FileError: no-such-file.onnx: No such file or directory; pass a model file or a folder that \
holds one.

    Raises:
        FileError: the file is missing, cut off, or lies about itself.
        UnsupportedError: it is of no format that is read here.
        MissingExtraError: the package that reads its format is not installed.
        ArgumentError: it is neither a path nor a module.
    """
    from layernorm.models.identify import identify

    if not isinstance(source, (str, Path)):
        model = _of_module(source)
        return Inspection(model, identify(model))
    from layernorm.models.formats import read_model

    _check_name(source)
    try:
        model = read_model(source)
        return Inspection(model, identify(model))
    except RecursionError:
        raise FileError(
            f"{source}: it is nested deeper than any model is; it may be made to do harm.", str(source)
        ) from None
    except OSError as error:  # of a shard, a configuration, a name too long for the system
        raise FileError(f"{source}: {error.strerror or error}; fetch the model again.", str(source)) from None
    except MemoryError:
        raise FileError(f"{source}: it asks for more memory than there is; it may be damaged.", str(source)) from None


def _check_name(path: str | Path) -> None:
    """Refuse what the system takes for the name of no file: a NUL in it, half a character, nothing."""
    try:
        if not str(path):
            raise ValueError("it is empty")
        Path(path).stat()
    except ValueError as error:
        raise FileError(f"{str(path)!r}: no file can have this name ({error}); pass a path.", str(path)) from None
    except OSError:
        pass  # read_model says it


def _of_module(source: Any) -> ModelFile:
    if not hasattr(source, "named_modules"):
        raise ArgumentError(
            f"a {type(source).__name__} is no model that is looked into here; pass a path or a torch.nn.Module."
        )
    from layernorm.models.formats.torch_file import read_module

    return read_module(source)

# SPDX-License-Identifier: MIT
"""This file loads the packages that targets come from, and says what to install where one is missing."""

from importlib import import_module, metadata
from typing import Any

from layernorm.spec.errors import MissingExtraError


def needed(module: str, package: str | None = None) -> Any:
    """Import a module of a package.

    Raises:
        MissingExtraError: it is not installed, or cannot be imported here.

    >>> needed("no_such_framework")
    Traceback (most recent call last):
        ...
    layernorm.spec.errors.MissingExtraError: no_such_framework is not installed; pip install no_such_framework.
    """
    package = package or module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as fault:
        if (fault.name or "").partition(".")[0] != module.partition(".")[0]:
            raise MissingExtraError(
                f"{package} is installed but lacks {fault.name}; pip install {fault.name}.", package
            ) from fault
        raise MissingExtraError(f"{package} is not installed; pip install {package}.", package) from None
    except ImportError as fault:
        raise MissingExtraError(f"{package} cannot be imported: {fault}; install it anew.", package) from fault


def version(package: str) -> str | None:
    """Say which version is installed, None if it does not say.

    >>> version("numpy") is not None
    True
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

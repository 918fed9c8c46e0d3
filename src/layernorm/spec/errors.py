# SPDX-License-Identifier: MIT
"""This file names every way in which the package refuses: one class a kind, one code a document."""


class LayerNormError(Exception):
    """Any refusal of this package: one sentence that says what is wrong, the values, and what to do.

    The classes below are ValueErrors, TypeErrors and LookupErrors too, so code that knows nothing of them catches them.
    `code` is what the command line's error document calls it; `where` is the file, argument or name it is about.
    """

    code = "bad-input"

    def __init__(self, sentence: str, where: str | None = None) -> None:
        super().__init__(sentence)
        self.where = where


class ArgumentError(LayerNormError, ValueError):
    """An argument has a value, size or shape that cannot be what was meant."""


class ArrayTypeError(LayerNormError, TypeError):
    """An array, or its type of number, is one that this package does not normalize."""


class SpecError(LayerNormError, ValueError):
    """A NormSpec contradicts itself, cannot be resolved, or leaves open what would change a number."""


class NotFoundError(LayerNormError, LookupError):
    """A name was asked for that has no page or row."""

    code = "not-found"


class UnsupportedError(LayerNormError, ValueError):
    """What was asked for is understood, and is none of what this package does."""

    code = "unsupported"


class MissingExtraError(LayerNormError, ImportError):
    """A package that this needs is not installed, or does not work here."""

    code = "missing-extra"


class InterruptedByUserError(LayerNormError):
    """The work was stopped from the keyboard."""

    code = "interrupted"


class FileError(LayerNormError, ValueError):
    """A file is missing, cut off, or does not hold what it says."""

    code = "unreadable"

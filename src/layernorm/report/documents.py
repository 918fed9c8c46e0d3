# SPDX-License-Identifier: MIT
"""This file makes the JSON documents that the command line prints."""

from typing import Any

from layernorm.spec.errors import LayerNormError


def error_document(error: LayerNormError) -> dict[str, Any]:
    """Make the document for a command that could not do its work (layernorm.error/1).

    >>> error_document(LayerNormError("x.onnx: there is no such file."))["error"]["code"]
    'bad-input'
    """
    return {
        "schema": "layernorm.error/1",
        "error": {"code": error.code, "sentence": str(error), "where": error.where},
    }

# SPDX-License-Identifier: MIT
"""This file reads the page's own files, once and into memory, and makes one file of them that works from disk."""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

# Said here and not asked of `mimetypes`, whose answers depend on the machine.
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
START = "index.html"


def static_files() -> dict[str, bytes]:
    """Give every file of the page by its name, such as `views/shift.js`; works from a zip too."""
    return dict(sorted(_walk(files("layernorm.explorer") / "static", "")))


def _walk(folder: Traversable, before: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{before}{entry.name}/")
        elif entry.name.rpartition(".")[2] in TYPES:
            yield before + entry.name, entry.read_bytes()


def one_file(held: Mapping[str, bytes]) -> str:
    """Write the page as one file: scripts and styles inside, and a policy that lets these run and nothing else.

    The same files give the same bytes.
    """
    page = held[START].decode("utf-8")
    sheets, scripts = [], []

    def style(found: re.Match[str]) -> str:
        sheets.append(_text(held[found[1]]))
        return f"<style>{sheets[-1]}</style>"

    def script(found: re.Match[str]) -> str:
        scripts.append(_text(held[found[1]]))
        return f"<script>{scripts[-1]}</script>"

    page = re.sub(r'<link rel="stylesheet" href="([^"]+)">', style, page)
    page = re.sub(r'<script defer src="([^"]+)"></script>', script, page)
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(sheets)}; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return page.replace("<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">', 1)


def _text(content: bytes) -> str:
    text = content.decode("utf-8")
    if "</script" in text or "</style" in text or "<!--" in text:
        raise ValueError("a file of the page holds what would end its element; write it in two parts.")
    return text


def _hashes(parts: list[str]) -> str:
    digests = (hashlib.sha256(part.encode("utf-8")).digest() for part in parts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode('ascii')}'" for digest in digests)

# SPDX-License-Identifier: MIT
"""This file builds the pages of docs/ with Sphinx: `make docs`. The explorer is written into them as one file."""

from pathlib import Path

import layernorm
from layernorm.explorer.page import one_file, static_files

project = "layernorm"
release = layernorm.__version__
copyright = "the layernorm authors, MIT license"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"
html_theme = "furo"
html_title = "layernorm"


def setup(app):
    """Write the explorer beside the pages, once they are built."""

    def write(app, error):
        if error is None:
            (Path(app.outdir) / "lab.html").write_text(one_file(static_files()), encoding="utf-8", newline="\n")

    app.connect("build-finished", write)

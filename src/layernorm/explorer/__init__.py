# SPDX-License-Identifier: MIT
"""This package is the page on which layer normalization is understood by doing, with the installed library behind it.

`static/` is the page, written as it is shipped; `page` reads it and makes one file of it; `server` serves it on this
machine; `computing` and `tensors` answer what the page asks.
"""

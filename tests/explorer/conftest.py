# SPDX-License-Identifier: MIT
"""This file serves the page in a thread and opens it in Debian's Chromium, which `make test` installs where it may."""

import json
import os
import shutil
import threading
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from layernorm.explorer import server

# The first call of the installed library compiles its kernels: 5 s, and longer where others compute.
expect.set_options(timeout=30_000)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NEEDED = "LAYERNORM_NEEDS_BROWSER" in os.environ
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="session")
def browser_type_launch_args():
    if CHROMIUM is None:
        if NEEDED:
            pytest.fail("there is no chromium, and LAYERNORM_NEEDS_BROWSER is set; apt-get install chromium")
        pytest.skip("there is no chromium: apt-get install chromium")
    return {"executable_path": CHROMIUM, "args": ARGUMENTS}


class Running:
    """A server in a thread."""

    def __init__(self, **settings):
        self.bound = server.listening("127.0.0.1", None)
        self.port = self.bound.getsockname()[1]
        self.served = server.Served(server.allowed_hosts(self.port), **settings)
        self.base = f"http://127.0.0.1:{self.port}/"
        ready = threading.Event()
        self.uvicorn = server.made(server.application(self.served), ready.set, self.served.seconds)
        self.thread = threading.Thread(target=self.uvicorn.run, kwargs={"sockets": [self.bound]}, daemon=True)
        self.thread.start()
        assert ready.wait(20)

    def stop(self):
        self.uvicorn.should_exit = True
        self.thread.join(20)
        self.bound.close()


@pytest.fixture(scope="session")
def running():
    run = Running()
    yield run
    run.stop()


def link(view, **state):
    """Write the part of a link that puts a view in a state."""
    words = "&".join(f"{key}={quote(json.dumps(value))}" for key, value in state.items())
    return f"#{view}?{words}" if words else f"#{view}"


@pytest.fixture
def lab(page, running):
    """Open a view in a state, with the token; what goes wrong in the page fails the test."""
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)

    def at(view, **state):
        page.goto("about:blank")
        page.goto(f"{running.base}#token={running.served.token}&{link(view, **state)[1:]}")
        page.wait_for_selector("main h2")
        return page

    yield at
    assert wrong == []

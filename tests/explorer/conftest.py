# SPDX-License-Identifier: MIT
"""This file serves the page in a thread and opens it in Debian's Chromium, which `make test` installs where it may."""

import json
import os
import shutil
import threading
from importlib.resources import files
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


@pytest.fixture(scope="session")
def tab(browser):
    context = browser.new_context()
    yield context.new_page()
    context.close()


@pytest.fixture
def page(tab):
    """Give the tab that all tests share, empty: to open one anew takes longer than most tests."""
    yield tab
    tab.evaluate(FORGET)
    tab.goto("about:blank")  # with the document goes all that its scripts know
    tab.set_viewport_size({"width": 1280, "height": 720})
    tab.emulate_media(media="null", color_scheme="light", reduced_motion="null", forced_colors="null")


# What a page keeps outlives its document; an empty one has nothing to keep things in.
FORGET = """() => {
  if (location.protocol === "about:") return;
  localStorage.clear();
  sessionStorage.clear();
}"""


@pytest.fixture
def fresh(context):
    """Open a tab in which nothing was opened before, and which keeps nothing of other tests."""
    return context.new_page()


FOLLOW = """(link) => {
  history.replaceState(null, "", link);
  dispatchEvent(new HashChangeEvent("hashchange"));
  document.activeElement.blur();
}"""


@pytest.fixture
def lab(page, running):
    """Open a view in a state, with the token; what goes wrong in the page fails the test.

    A test loads the page once, in 0.33 s, and has it follow links from then on, in 0.03 s; `loaded=True` loads it anew.
    """
    wrong = []
    page.on("pageerror", failed := lambda error: wrong.append(str(error)))
    page.on("console", said := lambda line: wrong.append(line.text) if line.type == "error" else None)

    def at(view, loaded=False, **state):
        if page.url.startswith(running.base) and not loaded:
            page.evaluate(FOLLOW, link(view, **state))
        else:
            page.goto("about:blank")
            page.goto(f"{running.base}#token={running.served.token}&{link(view, **state)[1:]}")
        page.wait_for_selector("main h2")
        return page

    yield at
    page.remove_listener("pageerror", failed)
    page.remove_listener("console", said)
    assert wrong == []


AXE = (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
FOUND = """(options) => axe.run(document, options).then(({ violations }) => violations.map(
  ({ id, nodes }) => [id, nodes[0].html, nodes[0].failureSummary]))"""
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}


def axe_finds_nothing(page):
    """Run every rule of axe over what is shown, in light and in dark."""
    if page.evaluate("() => !window.axe"):
        page.evaluate(AXE)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(FOUND, RULES) == [], scheme

# SPDX-License-Identifier: MIT
"""This file writes every view of the page into out/, light and dark, wide and narrow, at its start and revealed.

Usage: python tests/explorer/screenshots.py [view ...].
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from explorer.conftest import ARGUMENTS, CHROMIUM
from playwright.sync_api import sync_playwright

from layernorm.explorer.page import one_file, static_files

OUT = Path("out")
WIDTHS = {"wide": 1100, "narrow": 320}


def main(wanted):
    OUT.mkdir(exist_ok=True)
    lab = OUT / "lab.html"
    lab.write_text(one_file(static_files()), encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for scheme in ("light", "dark"):
            for name, width in WIDTHS.items():
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page.goto(lab.absolute().as_uri())
                views = page.locator("#views a").evaluate_all("all => all.map((a) => a.getAttribute('href').slice(1))")
                for view in wanted or views:
                    for state in ("start", "revealed"):
                        page.goto("about:blank")
                        page.goto(f"{lab.absolute().as_uri()}#{view}")
                        page.wait_for_selector("main h2")
                        if state == "revealed":
                            shown = page.get_by_role("button", name="Show me").first
                            if not shown.is_visible():
                                continue
                            shown.click()
                        page.wait_for_timeout(450)
                        path = OUT / f"{view}-{state}-{scheme}-{name}.png"
                        page.screenshot(path=path, full_page=True)
                        across = page.evaluate("document.documentElement.scrollWidth")
                        print(path, "wider than the window" if across > width else "")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])

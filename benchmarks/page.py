# SPDX-License-Identifier: MIT
"""This file times the page in a browser: from a slider's input to the drawn figure, and from the start to first paint.

Usage: python benchmarks/page.py. Medians over some inputs and loads, for every view that has a slider.
"""

import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from explorer.conftest import ARGUMENTS, CHROMIUM, Running
from playwright.sync_api import sync_playwright

INPUTS, LOADS = 40, 9
# What one input costs: the handlers and the drawing, until the next frame is there to be shown.
ONE_INPUT = """async (n) => {
  const slider = [...document.querySelectorAll("main input[type=range]")].find((s) => s.offsetParent !== null);
  if (!slider) return null;
  const times = [], frame = () => new Promise((done) => requestAnimationFrame(done));
  for (let i = 0; i < n; i += 1) {
    await frame();
    const began = performance.now();
    slider.value = Number(slider.min) + ((Number(slider.max) - Number(slider.min)) * (i + 1)) / (n + 1);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    document.body.getBoundingClientRect();
    times.push(performance.now() - began);
  }
  return times;
}"""
PAINT = """() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null"""


def main():
    """Time the first paint, then every view that has a slider."""
    running = Running()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        paints = []
        for _ in range(LOADS):
            page.goto("about:blank")
            page.goto(running.base)
            page.wait_for_timeout(300)
            paints.append(page.evaluate(PAINT))
        print(f"first paint: median {statistics.median(p for p in paints if p is not None):.0f} ms")
        views = page.locator("#views a").evaluate_all("all => all.map((a) => a.getAttribute('href'))")
        for view in views:
            page.goto("about:blank")
            page.goto(running.base + view)
            page.wait_for_selector("main h2")
            shown = page.get_by_role("button", name="Show me").first
            if shown.is_visible():
                shown.click()
            times = page.evaluate(ONE_INPUT, INPUTS)
            if times is not None:
                print(f"{view[1:]}: input to drawn, median {statistics.median(times):.1f} ms, most {max(times):.1f} ms")
        browser.close()
    running.stop()


if __name__ == "__main__":
    main()

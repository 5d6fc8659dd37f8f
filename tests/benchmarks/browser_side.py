"""Chromium, which opens pages with an empty and a filled cache and turns them."""

from __future__ import annotations

import shutil
from typing import Any

from playwright.async_api import Page, async_playwright
from worker import serve

NAMES = ("chromium", "chromium-browser", "google-chrome")
_LIMIT_MS = 120_000
_VIEW: Any = {"width": 1280, "height": 800}

_WATCH = """
let last = null;
const look = () => {
  const said = document.querySelector(ROW)?.textContent;
  if (said && said !== last) {
    last = said;
    const shown = () => sessionStorage.setItem("shown", performance.timeOrigin + performance.now());
    requestAnimationFrame(() => setTimeout(shown));
  }
  requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
"""Notes the time of the frame in which the first row has another text."""
_TURN = """
(button) => {
  sessionStorage.setItem("from", performance.timeOrigin + performance.now());
  document.querySelector(button).click();
}
"""
_TURNED = "Number(sessionStorage.getItem('shown')) > Number(sessionStorage.getItem('from'))"
_TOOK = "Number(sessionStorage.getItem('shown')) - Number(sessionStorage.getItem('from'))"


async def visit(url: str, row: str, button: str, turns: int) -> dict[str, Any]:
    """Return milliseconds until rows are seen, with an empty and a filled cache, and per page turn."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        raise RuntimeError(f"none of {NAMES} is installed: apt-get install chromium")
    async with async_playwright() as play:
        browser = await play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = await browser.new_page(bypass_csp=True, viewport=_VIEW)
        page.set_default_timeout(_LIMIT_MS)
        await page.add_init_script(_WATCH.replace("ROW", repr(row)))
        found = {"empty": await _opened(page, url), "cached": await _opened(page, url)}
        turned = [await _turned(page, button) for _ in range(turns)]
        await browser.close()
    return {**found, "turns": turned}


async def _opened(page: Page, url: str) -> float:
    await page.goto(url, wait_until="commit")
    await page.wait_for_function("Number(sessionStorage.getItem('shown')) > performance.timeOrigin")
    return await page.evaluate("Number(sessionStorage.getItem('shown')) - performance.timeOrigin")


async def _turned(page: Page, button: str) -> float:
    await page.wait_for_selector(button)
    await page.evaluate(_TURN, button)
    await page.wait_for_function(_TURNED)
    return await page.evaluate(_TOOK)


if __name__ == "__main__":
    serve(visit=visit)

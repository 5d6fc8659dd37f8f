"""Tokens in a real browser: colours, the token under pointer and caret, keys, 64,000 tokens."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.plugins.dashboard.token_world import large_run, small_run

pytest.importorskip("playwright")
pytestmark = pytest.mark.slow

COLOURED = """() => {
  const found = {};
  for (const [name, each] of CSS.highlights) if (name.startsWith("agl-")) found[name] = each.size;
  return found;
}"""
WATCH = """
window.seen = { chunks: 0, between: 0, drawn: 0, total: 0, clicked: false };
addEventListener("agl-tokens-drawn", (event) => {
  Object.assign(seen, event.detail);
  seen.chunks += 1;
  if (seen.chunks > 1) return;
  document.getElementById("theme").addEventListener("click", () => { seen.clicked = seen.drawn < seen.total; });
  setTimeout(() => { seen.between = seen.drawn; document.getElementById("theme").click(); });
});
"""


def run(coroutine):
    """Run a coroutine to its end: the browser's own loop runs in this thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


@pytest.fixture
def small(tmp_path, serve):
    world = run(small_run(tmp_path / "runs" / "r"))
    return world, serve(tmp_path / "runs")


def opened(watched, world, number=0, rollout=0, **query):
    asked = "".join(f"&{name}={value}" for name, value in query.items())
    page = watched.open(f"/run/r/-/tokens/{world.rollouts[rollout]}?call=call-{number}{asked}")
    page.wait_for_selector("#text[data-done]")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tokens_are_one_text_with_the_colours_of_a_number(small, tab, scheme):
    world, base = small
    watched = tab(base, color_scheme=scheme)
    page = opened(watched, world, number=1, rollout=1)
    text = page.locator("#text")
    assert text.text_content() == "Hello you↵\nyou <|im_end|>"
    assert page.evaluate("document.getElementById('text').childNodes.length") == 1
    first = page.evaluate(COLOURED)
    assert sum(size for name, size in first.items() if name.startswith("agl-one-")) == 3
    assert first["agl-context"] == 1
    page.click("#colours a[data-by=advantage]")
    page.wait_for_selector("#text[data-done=advantage]")
    assert page.evaluate(COLOURED)["agl-both-0"] == 3
    assert "by=advantage" in page.url
    page.reload()
    page.wait_for_selector("#text[data-done=advantage]")
    assert page.locator("#colours [aria-current]").inner_text() == "Advantage"
    page.keyboard.press("5")
    page.wait_for_selector("#text[data-done=ratio]")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_token_under_the_pointer_and_the_caret_is_shown(small, tab):
    world, base = small
    page = opened(tab(base), world)
    place = page.evaluate("""() => {
      const node = document.getElementById("text").firstChild, range = document.createRange();
      const at = node.data.indexOf("😀");
      range.setStart(node, at); range.setEnd(node, at + 2);
      const { x, y, width, height } = range.getBoundingClientRect();
      return [x + width / 2, y + height / 2];
    }""")
    page.mouse.move(*place)
    page.wait_for_selector("#token >> text=6 to 7, one character")
    page.mouse.click(*place)
    page.wait_for_url(re.compile("token=6"))
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#token >> text=<|im_end|>")
    facts = page.locator("#token").inner_text()
    assert "trained" in facts
    assert "-1.000" in facts
    page.keyboard.press("Home")
    page.wait_for_selector("#token[data-token='0']")
    assert "context" in page.locator("#token").inner_text()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("End")
    page.wait_for_url(re.compile("token=8"))
    page.reload()
    page.wait_for_selector("#token[data-token='8']")


def test_a_key_right_after_the_pointer_moved_chooses_what_is_shown(small, tab):
    world, base = small
    page = opened(tab(base), world)
    shown = page.evaluate("""async () => {
      const text = document.getElementById("text"), { x, y } = text.getBoundingClientRect();
      text.dispatchEvent(new PointerEvent("pointermove", { clientX: x + 12, clientY: y + 12 }));
      text.dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true }));
      await new Promise((done) => requestAnimationFrame(done));
      return document.getElementById("token").dataset.token;
    }""")
    assert shown == "8"


def test_colours_without_data_cannot_be_chosen(small, tab):
    world, base = small
    for file in (world.directory / "tokens").rglob("*.tokens"):
        file.unlink()
    page = opened(tab(base), world, by="entropy")
    assert page.locator("#colours [aria-current]").inner_text() == "Log-probability"
    assert page.locator("#colours a.off").count() == 4
    page.keyboard.press("3")
    assert "by=entropy" in page.url
    assert page.get_attribute("#text", "data-done") == "logprob"


def test_calls_trees_and_traces_lead_to_each_other(small, tab):
    world, base = small
    page = tab(base).open(f"/run/r/-/trace/{world.rollouts[1]}")
    page.locator("#tree a.span.llm").first.click()
    page.click("#detail a.each")
    page.wait_for_selector("#text[data-done]")
    page.keyboard.press("j")
    page.wait_for_url(re.compile("call=call-2"))
    page.wait_for_selector("#text[data-done]")
    page.click("text=Prefix tree")
    page.wait_for_selector("[data-shares]")
    assert page.locator(".prefixes a.span").count() == 3
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    page.wait_for_url(re.compile(f"/trace/{world.rollouts[1]}"))
    page.goto(base + "/run/r/-/tokens")
    page.wait_for_selector("#kept table")


def test_sixty_four_thousand_tokens_do_not_freeze_the_page(tmp_path, serve, tab):
    world = run(large_run(tmp_path / "runs" / "r", 64_000))
    base = serve(tmp_path / "runs")
    watched = tab(base)
    watched.page.add_init_script(WATCH)
    page = opened(watched, world)
    seen = page.evaluate("seen")
    assert seen["chunks"] > 10
    assert 0 < seen["between"] < 64_000, "no other task ran between the pieces"
    assert seen["clicked"], "a click was answered after all was drawn"
    assert seen["drawn"] == seen["total"] == 64_000
    sizes = page.evaluate(COLOURED)
    assert sum(size for name, size in sizes.items() if name.startswith("agl-one-")) == 63_000
    page.click("#colours a[data-by=advantage]")
    page.wait_for_selector("#text[data-done=advantage]")
    page.focus("#text")
    page.keyboard.press("End")
    page.wait_for_url(re.compile("token=63999"))

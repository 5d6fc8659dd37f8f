"""Marks in a real browser: buttons, keys, words, two viewers."""

from __future__ import annotations

import asyncio
import re
from threading import Thread

import pytest
from agl_records import MARKS_FILE, Marks

from agl_core.types import Rollout, Task
from tests.plugins.dashboard.browser import Served, Watched, chromium
from tests.plugins.dashboard.world import World, model_call

pytest.importorskip("playwright")
pytestmark = pytest.mark.slow
ASK = [{"role": "user", "content": "2+2?"}]


async def made(directory):
    """A run of two rollouts with one call each; returns the ids of the rollouts."""
    world = await World(directory).open()
    ids = []
    for text in ("four", "five"):
        claim = await world.begin(task=Task(id=f"task {text}", input="x"))
        ids.append(await world.end(claim, model_call(claim, "writer", ASK, text)))
    await world.close()
    return ids


@pytest.fixture
def elsewhere():
    """Run coroutines in a loop of another thread: the browser has one in this thread."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def rollouts(tmp_path, elsewhere):
    return elsewhere(made(tmp_path / "runs" / "one"))


@pytest.fixture
def tab(tmp_path):
    """Open tabs of one browser on dashboards; nothing may go wrong in any of them."""
    served, tabs = [], []
    with chromium() as browser:

        def opened(*arguments, url="", **options):
            if not url:
                served.append(Served(tmp_path / "runs", tmp_path / "index", *arguments))
                url = served[-1].url
            context = browser.new_context(viewport={"width": 1280, "height": 800}, **options)
            tabs.append(Watched(context, url))
            return tabs[-1]

        yield opened
        for each in served:
            each.stop()
    assert [fault for each in tabs for fault in each.faults] == []


def open_call(watched, rollout):
    page = watched.open(f"/run/one/-/trace/{rollout}")
    page.locator("#tree a.span.llm").last.click()
    page.wait_for_selector("#detail .said.answer")
    return page


def saved(page, verdict):
    page.wait_for_selector(f"#detail .mark[data-verdict='{verdict}']")
    page.wait_for_selector("#detail .mark [role=status]:text('Saved')")


def test_buttons_and_keys_mark_a_call(tab, rollouts, tmp_path):
    watched = tab("--write")
    marks = Marks(tmp_path / "runs" / "one" / MARKS_FILE)
    page = open_call(watched, rollouts[0])
    page.get_by_role("button", name="Good").click()
    saved(page, "good")
    assert page.locator("#tree .span.marked[data-verdict=good]").count() == 1
    page.keyboard.press("b")
    saved(page, "bad")
    assert page.locator(".mark [data-set=bad]").get_attribute("aria-pressed") == "true"
    page.keyboard.press("n")
    page.keyboard.type("too <b>short</b> gbu")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".mark [name=note]:has-text('gbu')")
    page.get_by_role("button", name="Begin with the answer").click()
    page.keyboard.press("End")
    page.keyboard.type("!")
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_selector(".mark [name=correction]:has-text('four!')")
    (mark,) = marks.read()
    assert (mark.verdict, mark.note, mark.correction) == ("bad", "too <b>short</b> gbu", "four!")
    page.reload()
    page.wait_for_selector(".mark [data-set=bad][aria-pressed=true]")
    assert page.locator(".mark [name=correction]").input_value() == "four!"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("u")
    page.wait_for_selector("#detail .mark[data-verdict='']")
    page.wait_for_selector(".mark [data-clear]:disabled")
    assert marks.read() == []


def test_the_list_leads_to_calls_and_exports(tab, rollouts):
    watched = tab("--write")
    page = watched.open("/run/one/-/marks")
    page.fill("#by", "Ann")
    page.locator("#by").blur()
    for rollout, key, verdict in zip(rollouts, "gb", ("good", "bad"), strict=True):
        page = open_call(watched, rollout)
        page.keyboard.press(key)
        saved(page, verdict)
    page = watched.open("/run/one/-/marks")
    assert page.locator("#list tbody tr").count() == 2
    assert "Ann" in page.locator("#list").inner_text()
    page.get_by_role("link", name="Preference pairs").click()
    page.wait_for_selector("#summary:has-text('1 rows of 2 marks')")
    with page.expect_download() as found:
        page.get_by_role("link", name="Save as JSON lines").click()
    assert '"chosen":[{"role":"assistant","content":"four"}]' in found.value.path().read_text()
    page.goto(f"{watched.base}/run/one/-/marks?verdict=bad")
    assert page.locator("#list tbody tr").count() == 1
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"/trace/{rollouts[1]}.*span="))
    page.wait_for_selector(".mark[data-verdict=bad]")


def test_two_viewers_and_one_who_only_reads(tab, rollouts):
    one = tab("--write")
    page = open_call(one, rollouts[0])
    page.keyboard.press("g")
    saved(page, "good")
    other = open_call(tab(url=one.base, color_scheme="dark"), rollouts[0])
    other.wait_for_selector(".mark[data-verdict=good]")
    other.keyboard.press("n")
    other.keyboard.type("from the other")
    other.keyboard.press("Control+Enter")
    saved(other, "good")
    page.keyboard.press("b")
    saved(page, "bad")
    assert page.locator(".mark [name=note]").input_value() == "from the other"
    reader = open_call(tab(), rollouts[0])
    assert reader.locator(".mark button").count() == 0
    assert "from the other" in reader.locator(".mark").inner_text()
    reader.keyboard.press("g")
    assert reader.locator(".mark[data-verdict=bad]").count() == 1


async def begun(directory):
    """A run with an attempt under way, in which one call has ended."""
    world = await World(directory).open()
    claim = await world.begin()
    await world.store.add_spans(model_call(claim, "writer", ASK, "four")[1:])
    return world, claim


async def goes_on(world, claim):
    await world.store.add_spans(model_call(claim, "planner", ASK, "five")[1:])
    await world.store.enqueue([Rollout(id="ro_more", task=Task(id="more"), run_id="one")])


def test_words_that_are_being_written_stay_while_the_attempt_goes_on(tab, tmp_path, elsewhere):
    directory = tmp_path / "runs" / "one"
    world, claim = elsewhere(begun(directory))
    page = open_call(tab("--write"), claim.rollout.id)
    page.wait_for_selector("#live:not([hidden])")
    page.keyboard.press("n")
    page.keyboard.type("half a no")
    elsewhere(goes_on(world, claim))
    page.wait_for_selector("#tree :text('planner')")
    page.keyboard.type("te")
    page.keyboard.press("Control+Enter")
    saved(page, "")
    elsewhere(world.close())
    assert [mark.note for mark in Marks(directory / MARKS_FILE).read()] == ["half a note"]


def test_what_cannot_be_saved_is_said(tab, rollouts, tmp_path):
    watched = tab("--write")
    page = open_call(watched, rollouts[0])
    (tmp_path / "runs" / "one" / MARKS_FILE).write_bytes(b"no database" * 1000)
    page.keyboard.press("g")
    page.wait_for_selector(".mark [role=status]:has-text('Not saved')")
    assert "move it away" in page.locator(".mark [role=status]").inner_text()
    watched.faults[:] = [each for each in watched.faults if "400 (Bad Request)" not in each]


def test_marks_fit_a_narrow_screen(tab, rollouts):
    watched = tab("--write", color_scheme="dark")
    watched.page.set_viewport_size({"width": 390, "height": 800})
    page = open_call(watched, rollouts[0])
    page.keyboard.press("b")
    saved(page, "bad")
    page.keyboard.press("c")
    pages = [page.evaluate("document.documentElement.scrollWidth > innerWidth")]
    page = watched.open("/run/one/-/marks?form=sft")
    pages.append(page.evaluate("document.documentElement.scrollWidth > innerWidth"))
    assert pages == [False, False]

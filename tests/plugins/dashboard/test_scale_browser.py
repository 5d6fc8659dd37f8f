"""Very large traces and texts in a real browser: the first part is there at once, the rest can be reached."""

from __future__ import annotations

import re

import pytest

from agl_core import semconv
from agl_core.types import SpanKind
from tests.plugins.dashboard.browser import run
from tests.plugins.dashboard.world import World, model_call, span

pytest.importorskip("playwright")
pytestmark = pytest.mark.slow
SPANS = 30_000
PIECE = 300
LONG = "word and " * 550_000
LINE = "x" * 5_000_000
ROWS = "#tree a[data-row]"


async def write_long(directory):
    """Write a trace of 30,000 spans; the last ones are a call and a tool with texts of 5 MB."""
    world = await World(directory).open()
    claim = await world.begin()
    agent = span(claim, SpanKind.AGENT, "planner", agent="planner")
    inner = [
        span(claim, SpanKind.OPERATION, f"step {at}", parent_id=agent.id, sequence=at)
        for at in range(SPANS - 3)
    ]
    asked = [{"role": "user", "content": LONG}]
    call = model_call(claim, "planner", asked, LINE, parent_id=agent.id)
    line = {semconv.GEN_AI_TOOL_ARGUMENTS: LINE, semconv.GEN_AI_TOOL_RESULT: LINE}
    tool = span(claim, SpanKind.TOOL, "look", parent_id=agent.id, attributes=line)
    found = await world.end(claim, [agent, *inner, *call, tool], output=LINE)
    await world.close()
    return found


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """A folder with the run, and the address of its trace."""
    folder = tmp_path_factory.mktemp("long")
    rollout_id = run(write_long(folder / "long"))
    return folder, f"/run/long/-/trace/{rollout_id}"


class Held:
    """Requests for pieces of the tree, which wait until they are let go."""

    def __init__(self, page):
        self.waiting = []
        self.hold = True
        page.route("**/*part=rows*", self._asked)

    def _asked(self, route):
        if self.hold:
            self.waiting.append(route)
        else:
            route.continue_()

    def let_go(self):
        self.hold = False
        for route in self.waiting:
            route.continue_()


def test_a_long_trace_answers_while_the_rest_of_it_loads(serve, tab, long_run):
    folder, path = long_run
    watched = tab(serve(folder))
    held = Held(watched.page)
    page = watched.open(path)
    assert page.locator(ROWS).count() == PIECE
    page.locator(ROWS).nth(2).click()
    page.wait_for_selector("#detail h2:text-is('step 1')")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("#detail h2:text-is('step 2')")
    with page.expect_request("**/*part=rows*"):
        page.evaluate("tree.scrollTop = tree.scrollHeight")
    page.locator(f"{ROWS}.marked").wait_for()
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("#detail h2:text-is('step 3')")
    held.let_go()
    page.keyboard.press("End")
    page.wait_for_selector("#detail h2:text-is('look')")
    assert page.locator(ROWS).count() < SPANS / 10
    page.keyboard.press("Home")
    page.wait_for_selector("#detail h2:text-is('planner')")


def test_every_span_of_a_long_trace_can_be_reached(serve, tab, long_run):
    folder, path = long_run
    page = tab(serve(folder)).open(path)
    ids = []
    for start in range(0, SPANS, PIECE):
        place = f"#spans-{start}"
        page.eval_on_selector(
            place, "(piece) => { tree.scrollTop = piece.offsetTop - tree.offsetTop }"
        )
        page.wait_for_selector(f"{place}:not(.pending)", state="attached")
        ids += page.eval_on_selector_all(
            f"{place} [data-row]", "rows => rows.map((row) => row.dataset.row)"
        )
    assert len(ids) == len(set(ids)) == SPANS
    assert page.locator(ROWS).count() <= 20 * PIECE
    page.eval_on_selector("#spans-0", "() => { tree.scrollTop = tree.scrollHeight / 2 }")
    page.locator(f"#spans-{SPANS // 2} [data-row]").nth(8).click()
    page.wait_for_selector(f"#detail h2:text-is('step {SPANS // 2 + 7}')")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector(f"#detail h2:text-is('step {SPANS // 2 + 6}')")


def test_the_arrows_go_on_into_a_piece_that_is_not_loaded(serve, tab, long_run):
    folder, path = long_run
    watched = tab(serve(folder))
    watched.page.set_viewport_size({"width": 1280, "height": 400})
    page = watched.open(path)
    page.locator(ROWS).nth(PIECE - 1).click()
    page.wait_for_selector(f"#detail h2:text-is('step {PIECE - 2}')")
    page.reload()
    page.wait_for_selector(f"{ROWS}.marked")
    for at in (PIECE - 1, PIECE, PIECE + 1):
        page.keyboard.press("ArrowDown")
        page.wait_for_selector(f"#detail h2:text-is('step {at}')")
    page.goto(page.url)
    page.wait_for_selector(f"#spans-{PIECE} .marked")
    for at in (PIECE, PIECE - 1, PIECE - 2):
        page.keyboard.press("ArrowUp")
        page.wait_for_selector(f"#detail h2:text-is('step {at}')")


def test_texts_of_five_megabytes_show_their_beginning_and_a_link(serve, tab, long_run):
    folder, path = long_run
    page = tab(serve(folder)).open(path)
    page.wait_for_selector("#detail >> text=5,000,000 characters")
    page.keyboard.press("End")
    page.wait_for_selector("#detail h2:text-is('look')")
    assert page.locator("#detail >> text=The first 10,000 of 5,000,000 characters").count() == 2
    page.keyboard.press("ArrowUp")
    page.wait_for_selector("#detail .said.answer")
    sizes = page.eval_on_selector_all("#detail .text", "all => all.map(e => e.innerText.length)")
    assert max(sizes) <= 10_000
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    link = page.locator("#detail .said.user >> text=All of it").get_attribute("href")
    answer = page.request.get(page.url.partition("/run/")[0] + link)
    assert answer.text() == LONG


def test_a_trace_that_grows_keeps_its_place(serve, tab, tmp_path):
    world = World(tmp_path / "runs" / "live")
    claim = run(begun(world, 2 * PIECE))
    page = tab(serve(tmp_path / "runs")).open(f"/run/live/-/trace/{claim.rollout.id}")
    page.locator(ROWS).nth(2).click()
    page.wait_for_selector("#detail h2:text-is('step 2')")
    page.keyboard.press("End")
    page.wait_for_selector(f"#detail h2:text-is('step {2 * PIECE - 1}')")
    top = page.evaluate("tree.scrollTop")
    run(grown(world, claim))
    page.wait_for_selector(f"#spans-{2 * PIECE} {ROWS[6:]}", state="attached")
    page.wait_for_selector("#head:has-text('succeeded')")
    assert page.evaluate("tree.scrollTop") >= top > 0
    assert page.locator(f"{ROWS}.marked").inner_text().count(f"step {2 * PIECE - 1}") == 1


def steps(claim, first, number):
    return [
        span(claim, SpanKind.OPERATION, f"step {first + at}", sequence=first + at)
        for at in range(number)
    ]


async def begun(world, spans):
    await world.open()
    claim = await world.begin()
    await world.store.add_spans(steps(claim, 0, spans))
    await world.close()
    return claim


async def grown(world, claim):
    from agl_core.store import SqliteStore

    world.store = SqliteStore(world.directory / "store.db", orphans="keep")
    await world.store.open()
    await world.end(claim, steps(claim, 2 * PIECE, 5))
    await world.close()


def test_pages_of_a_list_turn_without_loading_the_rest_again(serve, tab, tmp_path):
    run(many(World(tmp_path / "runs" / "many"), 120))
    page = tab(serve(tmp_path / "runs")).open("/run/many/-/rollouts?mode=train")
    page.wait_for_selector("#total:has-text('120')")
    page.evaluate("window.stays = true")
    first = page.locator("[data-row]").first.get_attribute("data-row")
    page.click("a[rel=next]")
    page.wait_for_url(re.compile("mode=train&after="))
    second = page.locator("[data-row]").first.get_attribute("data-row")
    page.keyboard.press("j")
    assert page.locator(".marked").get_attribute("data-row") == second != first
    page.click("a[rel=next]")
    page.wait_for_selector("a[rel=next][aria-disabled]")
    assert page.locator("[data-row]").count() == 20
    page.go_back()
    page.wait_for_selector(f"[data-row='{second}']")
    page.click("a[rel=prev]")
    page.wait_for_selector(f"[data-row='{first}']")
    assert page.evaluate("window.stays")
    page.reload()
    page.wait_for_selector(f"[data-row='{first}']")


async def many(world, rollouts):
    await world.open()
    for _ in range(rollouts):
        await world.end(await world.begin(), [])
    await world.close()

"""Every page in a real browser: charts, keys, live updates, hostile texts, runs that break."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.e2e.processes import environment, settings
from tests.plugins.dashboard.browser import run
from tests.plugins.dashboard.world import World, hostile_run

pytest.importorskip("playwright")
pytestmark = pytest.mark.slow
RUN = "/run/alpha/-"
PAGES = ("overview", "rollouts", "agents", "prompts", "system")


def test_every_page_opens_without_a_fault_in_light_dark_and_narrow(serve, tab, runs):
    base = serve(runs)
    sizes = ({"width": 1280, "height": 800}, {"width": 390, "height": 800})
    for scheme, size in zip(("light", "dark"), sizes, strict=True):
        watched = tab(base, color_scheme=scheme)
        watched.page.set_viewport_size(size)
        for name in PAGES:
            page = watched.open(f"{RUN}/{name}")
            page.wait_for_selector("main section")
            wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
            assert not wide, (name, scheme)
        for path in ("/runs", "/compare?run=alpha&a=alpha@0&b=alpha@3"):
            watched.open(path).wait_for_selector("main section")


def test_charts_are_drawn_after_the_page_and_choose_steps(serve, tab, runs):
    page = tab(serve(runs)).open(f"{RUN}/overview")
    page.wait_for_selector("#charts[data-drawn]")
    assert page.locator(".js-plotly-plot").count() >= 6
    plot = page.locator("[data-chart=reward] .nsewdrag").bounding_box()
    page.mouse.move(plot["x"] + plot["width"] * 0.4, plot["y"] + 40)
    page.mouse.down()
    page.mouse.move(plot["x"] + plot["width"] * 0.98, plot["y"] + 45, steps=5)
    page.mouse.up()
    page.wait_for_url(re.compile(r"steps=2-3"))
    page.wait_for_selector("text=Rollouts of these steps")
    page.reload()
    page.wait_for_selector("text=Steps 2 to 3")
    page.goto(page.url.partition("?")[0])
    page.wait_for_selector("#charts[data-drawn]")
    plot = page.locator("[data-chart=reward] .nsewdrag").bounding_box()
    page.mouse.move(plot["x"] + plot["width"] / 2, plot["y"] + plot["height"] / 2)
    page.mouse.click(plot["x"] + plot["width"] / 2, plot["y"] + plot["height"] / 2)
    page.wait_for_url(re.compile(r"rollouts\?mode=train&first=2&last=2"))


def test_keys_move_through_rollouts_and_spans(serve, tab, runs):
    page = tab(serve(runs)).open(f"{RUN}/rollouts?mode=train&sort=reward")
    page.wait_for_selector("[data-row]")
    first, second = (page.locator("[data-row]").nth(at).get_attribute("data-row") for at in (0, 1))
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.locator(".marked").get_attribute("data-row") == second
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"/trace/{first}"))
    page.keyboard.press("j")
    page.wait_for_url(re.compile(f"/trace/{second}"))
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    page.wait_for_selector("#detail dl.facts >> text=trained v2")
    assert "span=" in page.url
    page.locator("#tree a.span.llm").last.click()
    page.wait_for_selector("#detail details.thinking")
    assert not page.locator("#detail details.thinking .text").is_visible()
    page.keyboard.press("Escape")
    page.wait_for_url(re.compile(r"/rollouts\?mode=train&sort=reward$"))
    page.keyboard.press("/")
    page.keyboard.type("broke")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"text=broke"))
    assert page.locator("[data-row]").count() == 1


def test_a_click_right_after_a_key_chooses_the_span_that_is_shown(serve, tab, runs):
    page = tab(serve(runs)).open(f"{RUN}/rollouts?mode=train&sort=reward")
    page.wait_for_selector("[data-row]")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("#tree a.span")
    chosen, asked = page.evaluate("""async () => {
      const asked = [], fetched = window.fetch;
      window.fetch = (url) => { asked.push(new URL(url).searchParams.get("span")); return fetched(url); };
      document.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
      const chosen = [...document.querySelectorAll("#tree a.span")].at(-1);
      chosen.click();
      await new Promise((done) => { setTimeout(done, 80); });
      return [chosen.dataset.row, asked];
    }""")
    assert asked == [chosen]


def test_hostile_texts_do_nothing(serve, tab, tmp_path):
    ids = run(hostile_run(tmp_path / "runs" / "hostile"))
    watched = tab(serve(tmp_path / "runs"))
    for path in ("rollouts", "agents", "system"):
        watched.open(f"/run/hostile/-/{path}").wait_for_selector("main section")
    for rollout_id in ids:
        page = watched.open(f"/run/hostile/-/trace/{rollout_id}")
        page.locator("#tree a.span.llm").last.click()
        page.wait_for_selector("#detail .said.answer")
        assert page.title().endswith("agl")
        assert page.locator("main iframe, main script, main img, main svg").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_pages_of_two_viewers_follow_a_run(serve, tab, tmp_path):
    """Also after the server was away."""
    world = World(tmp_path / "runs" / "live")
    run(world.make())
    world.begin_log()
    base = serve(tmp_path / "runs")
    overview = tab(base).open("/run/live/-/overview")
    rollouts = tab(base).open("/run/live/-/rollouts")
    rollouts.wait_for_selector("text=No rollout passes this filter")

    run(world.more())
    world.step(1)
    rollouts.wait_for_selector("#list [data-row]")
    overview.wait_for_selector("#tiles:has-text('1 / 3')")
    overview.wait_for_selector("[data-chart='metric:loss'].js-plotly-plot")
    world.step(2)
    overview.wait_for_selector("#tiles:has-text('2 / 3')")
    assert overview.locator("#status").inner_text() == "running"
    world.finish()
    overview.wait_for_selector("#status:has-text('finished')")


def test_a_real_run_is_followed_and_its_death_is_seen(serve, tab, tmp_path):
    config = settings(tmp_path, train={"steps": 10_000}, name="real")
    place = {**environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "agl_core.cli", "train", str(config)]
    with (tmp_path / "out").open("w") as out:
        trainer = subprocess.Popen(command, env=place, stdout=out, stderr=out)
    try:
        (tmp_path / "runs" / "real").mkdir(parents=True, exist_ok=True)
        page = tab(serve(tmp_path / "runs")).open("/runs")
        page.wait_for_selector("tr:has-text('real') >> text=running", timeout=60_000)
        page.click("a.open:has-text('real')")
        page.wait_for_selector("#status:has-text('running')")
        steps = page.locator("#tiles b").first
        before = steps.inner_text()
        page.wait_for_selector(f"#tiles .tile:first-child b:not(:text-is('{before}'))")
        page.goto(page.url.replace("/overview", "/rollouts"))
        page.wait_for_selector("#list [data-row]")
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        page.wait_for_selector("#status:has-text('stopped')")
        page.goto(page.url.partition("/rollouts")[0] + "/overview")
        page.wait_for_selector("text=was killed")
    finally:
        trainer.kill()
        trainer.wait()


def test_a_corrupt_store_and_a_deleted_run_say_so(serve, tab, tmp_path):
    folder = tmp_path / "runs"
    for name in ("broken", "gone"):
        world = World(folder / name)
        run(world.make())
        run(world.more())
    (folder / "broken" / "store.db").write_bytes(b"no database" * 1000)
    watched = tab(serve(folder))
    page = watched.open("/run/broken/-/rollouts")
    page.wait_for_selector("text=is not a store")
    watched.open("/run/broken/-/overview").wait_for_selector("#tiles")
    page = watched.open("/run/gone/-/rollouts")
    page.wait_for_selector("[data-row]")
    for file in (folder / "gone").iterdir():
        file.unlink()
    (folder / "gone").rmdir()
    page.wait_for_selector("#problem:has-text('no such file')")


def test_a_store_that_comes_later_is_shown_without_a_reload_by_hand(serve, tab, tmp_path):
    world = World(tmp_path / "runs" / "late")
    run(world.make())
    store = tmp_path / "runs" / "late" / "store.db"
    store.rename(tmp_path / "kept.db")
    page = tab(serve(tmp_path / "runs")).open("/run/late/-/rollouts")
    page.wait_for_selector("text=Nothing to show")
    (tmp_path / "kept.db").rename(store)
    run(world.more())
    page.wait_for_selector("#list [data-row]")


def test_beyond_this_machine_a_key_is_needed(serve, tab, runs):
    url = serve(runs, "--host", "0.0.0.0").replace("0.0.0.0", "127.0.0.1")
    base, _, key = url.partition("/?key=")
    assert key
    watched = tab(base)
    page = watched.page
    assert page.goto(base).status == 401
    watched.faults.clear()
    page.goto(url)
    page.wait_for_url(re.compile("/overview$"))
    page.wait_for_selector("#charts[data-drawn]")
    assert key not in page.url
    assert key not in json.dumps(page.evaluate("document.cookie"))

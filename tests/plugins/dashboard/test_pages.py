"""Every page, as a server answers it."""

from __future__ import annotations

import json
import os
import re
import socket
from html import unescape

import pytest
from agl_reading import ServiceLog, ServiceState

from agl_core.gateway import GatewayOptions, GatewayServer
from agl_core.types import LLM, Resources, Rollout, Task
from tests.plugins.dashboard.world import HOSTILE, World, hostile_run, large_trace, tuned_run

RUN = "/run/alpha/-"


async def page(client, path, status=200):
    answer = await client.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


async def counted(client, run="alpha"):
    """Wait until every rollout of a run is in its index."""
    source = client.sources.get(run)
    await source.look()
    while not source.readable or source.reading.progress.uncounted:
        await source.changed(source.version, 5)
    return source


@pytest.fixture
async def alpha(visit, runs):
    client = await visit(runs)
    await counted(client)
    return client


async def test_runs_show_state_steps_and_scores(alpha):
    html = await page(alpha, "/runs")
    for text in ("alpha", "finished", "3<small> / 3", "0.600", "0.900", "<polyline"):
        assert text in html
    assert (await alpha.get("/")).headers["location"] == f"{RUN}/overview"


async def test_overview_sums_steps_and_narrows_to_an_interval(alpha):
    html = await page(alpha, f"{RUN}/overview")
    assert "Held-out score" in html
    assert re.search(r"Rollouts</span><b>12</b>", html)
    assert "calls_refused" in html
    html = await page(alpha, f"{RUN}/overview?steps=2-3")
    assert re.search(r"Rollouts</span><b>8</b>", html)
    assert f"{RUN}/rollouts?mode=train&amp;first=2&amp;last=3" in html
    assert re.search(r"Rollouts</span><b>12</b>", await page(alpha, f"{RUN}/overview?steps=x-y"))


async def test_charts_get_their_numbers(alpha):
    data = json.loads(await page(alpha, f"{RUN}/overview/data.json"))
    charts = data["charts"]
    assert data["x"] == [1, 2, 3]
    names = {each["name"]: each for each in charts["reward"]}
    assert names["all"]["y"] == pytest.approx([0.2, 0.4, 0.6])
    assert names["agent writer"]["y"] == [0.125, 0.125, 0.125]
    assert charts["score"][0]["high"] == pytest.approx([0.3, 1.0])
    assert charts["metric:loss"][0]["y"][0] == 1.0
    assert [each["name"] for each in charts["time"]] == ["whole step", "update"]
    assert charts["lost"][0]["y"] == [1, 1, 1]
    html = await page(alpha, f"{RUN}/overview")
    shown = re.findall(r'data-chart="([^"]+)"', html)
    assert shown[:4] == ["reward", "score", "metric:loss", "metric:entropy"]
    assert set(shown) <= set(charts)


async def rewards(client, query=""):
    html = await page(client, f"{RUN}/rollouts{query}")
    return re.findall(r'<td class="num" title="[^"]*">([^<]*)</td>', html)


async def test_rollouts_filter_and_sort(alpha):
    assert len(await rewards(alpha)) == 11
    assert await rewards(alpha, "?mode=val&sort=reward") == ["1.500", "1.500", "1.500", "0.000"]
    assert await rewards(alpha, "?mode=val&sort=reward&order=up") == [
        "0.000",
        "1.500",
        "1.500",
        "1.500",
    ]
    assert await rewards(alpha, "?mode=train&first=3&last=3") == ["–", "0.750", "0.000"]
    assert await rewards(alpha, "?mode=val&first=3&last=3") == ["1.500", "1.500"]
    assert await rewards(alpha, "?status=failed&cause=agent") == ["–"]
    assert await rewards(alpha, "?text=broke") == ["–"]
    assert await rewards(alpha, "?least=1&agent=writer") == ["1.500"] * 3
    assert await rewards(alpha, "?first=x&sort=y&status=z&least=q&mode=w") == await rewards(alpha)
    assert "No rollout passes this filter" in await page(alpha, f"{RUN}/rollouts?task=none")


async def test_rollouts_turn_pages_by_place(visit, tmp_path):
    world = await World(tmp_path / "many").open()
    for claim in [await world.begin(step=at) for at in range(120)]:
        await world.end(claim, [])
    await world.close()
    client = await visit(tmp_path / "many")
    await counted(client, "many")
    seen, path = [], "/run/many/-/rollouts?sort=step&order=up"
    while path:
        html = await page(client, path)
        seen.append(re.findall(r'data-row="([^"]+)"', html))
        found = re.search(r'rel="next" href="([^"]+)"', html)
        previous = re.search(r'rel="prev" href="([^"]+)"', html)
        path = unescape(found[1]) if found else ""
    assert [len(each) for each in seen] == [50, 50, 20]
    assert len({row for each in seen for row in each}) == 120
    html = await page(client, unescape(previous[1]))
    assert re.findall(r'data-row="([^"]+)"', html) == seen[1]
    html = await page(client, unescape(re.search(r'rel="prev" href="([^"]+)"', html)[1]))
    assert re.findall(r'data-row="([^"]+)"', html) == seen[0]
    assert 'rel="prev" aria-disabled' in html
    answer = await client.get("/run/many/-/rollouts/rollouts.jsonl?first=1&last=2")
    assert len([json.loads(line) for line in answer.text.splitlines()]) == 2
    assert "attachment" in answer.headers["content-disposition"]
    assert "not a place" in await page(client, "/run/many/-/rollouts?after=nonsense")


async def open_trace(client, query=""):
    html = await page(client, f"{RUN}/rollouts{query}")
    return unescape(re.search(r'class="open" href="([^"]+)"', html)[1])


async def test_a_trace_shows_its_tree_messages_and_siblings(alpha):
    path = await open_trace(alpha, "?mode=train&sort=reward")
    html = await page(alpha, path)
    names = re.findall(r"<b>([^<]+)</b><em>([^<]*)", html)
    assert [name for name, _ in names] == [
        "planner",
        "planner",
        "look",
        "writer",
        "writer",
        "main +0.500",
        "main +0.250",
    ]
    assert "→ look" in names[1][1]
    assert "as expected" in html
    assert len(re.findall(r'<a href="[^"]*trace/[^"]*"[^>]*title="(?:succeeded|failed)', html)) >= 2
    last = re.findall(r'data-row="([^"]+)"', html)[4]
    detail = await page(alpha, f"{path}&part=detail&span={last}")
    for text in (
        "trained v2",
        "3 in, 2 sampled",
        "Plan.",
        "Thinking, 11 characters",
        "→ look",
        "four",
    ):
        assert text in detail
    assert "<html" not in detail
    whole = await page(alpha, f"{path}&span={last}")
    assert f'marked" data-row="{last}"' in whole


async def test_keys_lead_to_the_neighbours_in_the_list(alpha):
    path = await open_trace(alpha, "?mode=train&sort=reward&order=up")
    seen = []
    while path:
        html = await page(alpha, path)
        seen.append(re.search(r"/trace/([^?]+)", path)[1])
        found = re.search(r'data-key="j" href="([^"]+)"', html)
        path = unescape(found[1]) if found else ""
    assert len(seen) == len(set(seen)) == 7
    back = unescape(re.search(r'data-key="Escape" href="([^"]+)"', html)[1])
    assert back == f"{RUN}/rollouts?mode=train&sort=reward&order=up"
    assert f"/trace/{seen[-2]}" in re.search(r'data-key="k" href="([^"]+)"', html)[1]


async def test_a_failed_rollout_shows_its_failure(alpha):
    html = await page(alpha, await open_trace(alpha, "?status=failed"))
    assert "agent: the agent broke" in html
    assert "Trace: the agent broke" in html


async def test_agents_show_sums_and_the_graph(alpha):
    html = await page(alpha, f"{RUN}/agents")
    assert [unescape(each) for each in re.findall(r'class="clip"><a[^>]*>([^<]+)', html)] == [
        "planner",
        "writer",
    ]
    assert html.count('marker-end="url(#tip)"') == 2
    html = await page(alpha, f"{RUN}/agents?mode=test")
    assert "No rollout has ended yet" in html
    assert "2</td>" in await page(alpha, f"{RUN}/agents?mode=val&steps=3-3")


async def test_prices_in_the_address_give_the_cost_of_agents(alpha):
    html = await page(alpha, f"{RUN}/agents")
    assert "Cost" not in html
    prices = "prices=1&in:planner=2000000&out:planner=1e6"
    html = await page(alpha, f"{RUN}/agents?{prices}")
    row = re.search(r"planner</a>.*?</tr>", html, re.DOTALL)[0]
    calls, prompt, sampled = re.findall(r'class="num">([\d.,]+)</td>', row)[:3]
    expected = float(calls) * (2 * float(prompt) + float(sampled))
    assert float(re.search(r"these calls: <b>([\d.,]+)", html)[1].replace(",", "")) == expected
    assert "without 1 agents that have no price" in html
    assert 'name="in:writer" value=""' in html
    hidden = await page(alpha, f"{RUN}/agents?{prices.removeprefix('prices=1&')}&mode=train")
    assert "Cost" in hidden
    assert "<form" not in hidden.partition('id="agents"')[2]
    assert "is not a number of at least 0" in await page(alpha, f"{RUN}/agents?in:writer=-1")


async def test_prompts_show_versions_scores_and_words_that_changed(alpha):
    html = await page(alpha, f"{RUN}/prompts")
    assert html.index("aaaa1111") < html.index("bbbb2222")
    assert "chosen" in html
    assert "<ins>&lt;b&gt;</ins>" in html
    assert "+0.500" in html
    assert "1 damaged lines" in html
    assert "1 refused" in html
    html = await page(alpha, f"{RUN}/prompts?version=aaaa1111")
    assert "Answer briefly." in html
    assert "<ins>" not in html


async def test_system_shows_the_store_and_the_configuration(alpha):
    html = await page(alpha, f"{RUN}/system")
    for text in ("store.db", "readable", "11 rollouts", "finished", "&#34;agents&#34;"):
        assert text in html


async def test_system_shows_what_services_state(visit, tmp_path):
    world = await World(tmp_path / "busy").open()
    await world.rollout(1.0)
    world.begin_log()
    rows = [["at the gateway, agent", "5/minute", 12, 3, ""]]
    rows += [[text, "x" * 999, 1.5, -1, ""] for text in HOSTILE]
    columns = ["Limit", "Rate", "Sent", "Refused or waited", "Seconds waited"]
    state = ServiceState(title="Limits", columns=columns, rows=rows, facts={"waiting": 7})
    ServiceLog(tmp_path / "busy", "limits").write(lambda: state)
    client = await visit(tmp_path)
    await counted(client, "busy")
    html = await page(client, "/run/busy/-/system")
    shown = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))
    assert "Refused or waited Seconds waited at the gateway, agent 5/minute 12 3" in shown
    assert "waiting 7" in shown
    assert "<script>document" not in html
    assert "&lt;script&gt;document" in html
    await world.close()


async def test_system_shows_processes_gateway_and_queue(visit, tmp_path):
    world = await World(tmp_path / "busy").open()
    await world.rollout(1.0)
    for at in range(3):
        await world.store.enqueue([Rollout(id=f"ro_{at}", task=Task(id="t"), run_id="busy")])
    worker = f"{socket.gethostname()}-{os.getpid()}/1.0"
    await world.store.claim(worker)
    await world.store.claim("elsewhere-77/1.0")
    gateway = GatewayServer(world.store, GatewayOptions())
    await gateway.start()
    try:
        url = gateway.url
        await world.store.publish(
            Resources(run_id="busy", items={"m": LLM(model="m", base_url=f"{url}/v1")})
        )
        world.begin_log()
        world.log.stage("evaluating")
        world.step(1)
        world.evaluation(1, 0.5)
        client = await visit(tmp_path)
        await counted(client, "busy")
        html = await page(client, "/run/busy/-/system")
    finally:
        await gateway.stop()
    shown = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))
    host = socket.gethostname()
    assert re.search(rf"trainer {os.getpid()} {host} alive", shown)
    assert re.search(rf"runner {os.getpid()} {host} alive", shown)
    assert "runner 77 elsewhere on another machine" in shown
    assert f"Address {url} State answers , 0 model requests in flight" in shown
    assert re.search(r"writer trained 1 \d+ ms", shown)
    assert "Waiting 1 rollouts, the oldest for" in shown
    assert re.search(r"elsewhere-77/1.0 1 [\d.]+ m?s [\d.]+ m?s ago 0", shown)
    assert "eval at step 1: 0.500" in shown
    assert "1 of 3, reward 0.500, 100 tokens, 2.00 s" in shown

    html = await page(client, "/run/busy/-/system")
    assert "does not answer" in html
    html = await page(client, "/run/busy/-/system?kind=stage")
    assert "doing evaluating" in html
    assert "eval at step 1" not in html
    assert "No line passes" in await page(client, "/run/busy/-/system?find=nothing+like+this")
    assert "eval at step 1" in await page(client, "/run/busy/-/system?find=EVAL+at")
    await world.close()


async def test_compare_shows_tasks_with_the_greatest_difference_first(alpha):
    html = await page(alpha, "/compare?a=alpha@0&b=alpha@3&run=alpha")
    assert "+0.750" in html
    assert re.findall(r'<td class="clip">(\w+)</td>', html) == ["one", "two"]
    assert "/compare/data.json?run=alpha" in html
    data = json.loads(await page(alpha, "/compare/data.json?run=alpha"))
    assert data["charts"]["reward"][0]["name"] == "alpha"
    assert "not an evaluation" in await page(alpha, "/compare?a=alpha@x&b=alpha@3")
    assert "no task in common" in await page(alpha, "/compare?a=alpha@0&b=alpha@2")


@pytest.fixture
async def tuned(visit, tmp_path):
    await tuned_run(tmp_path / "tuned")
    client = await visit(tmp_path)
    await counted(client, "tuned")
    return client


async def test_evaluations_of_prompt_phases_at_one_step_are_all_shown(tuned):
    html = await page(tuned, "/run/tuned/-/overview")
    assert re.findall(r"<tr><td>(0[^<]*)</td>", html) == ["0", "0, phase 0", "0, phase 1"]
    assert "/compare?a=tuned%400&amp;b=tuned%400-phase-1" in html
    data = json.loads(await page(tuned, "/run/tuned/-/overview/data.json"))
    score = data["charts"]["score"][0]
    assert (score["x"], score["y"]) == ([0, 0, 0], [0.0, 0.75, 1.5])
    assert score["text"] == ["", " after phase 0", " after phase 1"]
    assert score["versions"] == [10, 20, 30]
    data = json.loads(await page(tuned, "/compare/data.json?run=tuned"))
    assert data["charts"]["score"][0]["y"] == [0.0, 0.75, 1.5]
    assert "1.500" in await page(tuned, "/runs")


async def test_the_rollouts_of_an_evaluation_are_apart_from_those_of_candidates(tuned):
    html = await page(tuned, "/compare?a=tuned@0&b=tuned@0-phase-1")
    values = re.findall(r'<td class="num"><a[^>]*>([^<]*)</a></td>', html)
    assert values == ["0.000", "1.500"] * 2
    assert "not an evaluation" in await page(tuned, "/compare?a=tuned@0-phase-x&b=tuned@0")

    html = await page(tuned, "/run/tuned/-/overview")
    rollouts = "/run/tuned/-/rollouts?mode=val&first=0&last=0&version=20"
    assert rollouts in unescape(html)
    html = await page(tuned, rollouts)
    assert len(re.findall(r"<tr data-row", html)) == 2
    assert 'name="version" value="20"' in html
    (rollout, *_) = re.findall(r'<tr data-row="([^"]+)"', html)
    assert "siblings" not in await page(tuned, f"/run/tuned/-/trace/{rollout}")


async def test_hostile_texts_are_shown_as_text(visit, tmp_path):
    ids = await hostile_run(tmp_path / "hostile")
    client = await visit(tmp_path)
    await counted(client, "hostile")
    listed = await page(client, "/run/hostile/-/rollouts")
    for rollout_id, text in zip(ids, HOSTILE, strict=False):
        path = f"/run/hostile/-/trace/{rollout_id}"
        html = await page(client, path)
        spans = re.findall(r'data-row="([^"]+)"', html)
        details = [await page(client, f"{path}?part=detail&span={each}") for each in spans]
        for each in (listed, html, *details):
            assert text not in each or "<" not in text
            assert not re.search(r"<(?:iframe|svg onload|img src=x)", each)
            assert "document.title='owned'</script>" not in each
            assert "\x1b" not in each
            assert "\u202e" not in each
        assert any("four" not in each for each in details)
    assert "[U+202E]gnp.exe" in listed
    assert "lone \ufffd surrogate" in listed
    assert "␛[31mred␇␡" in listed


async def test_a_line_of_five_megabytes_is_cut_and_has_an_address(visit, tmp_path):
    *_, rollout_id = await hostile_run(tmp_path / "hostile")
    client = await visit(tmp_path)
    path = f"/run/hostile/-/trace/{rollout_id}"
    html = await page(client, path)
    assert len(html) < 100_000
    assert "The first 10,000 of 5,000,000 characters" in html
    span = re.findall(r'data-row="([^"]+)"', html)[4]
    detail = await page(client, f"{path}?part=detail&span={span}")
    assert len(detail) < 100_000
    link = next(each for each in re.findall(r'href="([^"]+)"', detail) if "part=text" in each)
    answer = await client.get(unescape(link))
    assert answer.text == "x" * 5_000_000
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert "There is no text" in await page(client, f"{path}?part=text&path=messages.9")


NEXT = re.compile(r'data-next="([^"]+)"')


async def test_a_large_trace_comes_in_pieces(visit, tmp_path):
    rollout_id = await large_trace(tmp_path / "large", 3000)
    client = await visit(tmp_path)
    path = f"/run/large/-/trace/{rollout_id}"
    html = await page(client, path)
    pieces = [html, *[await page(client, unescape(at)) for at in NEXT.findall(html)]]
    rows = [re.findall(r'data-row="([^"]+)"', piece) for piece in pieces]
    assert [len(each) for each in rows] == [300] * 10 + [1]
    assert len({row for each in rows for row in each}) == 3001
    selected = await page(client, f"{path}?span={rows[4][7]}")
    assert re.findall(r'data-row="([^"]+)"', selected) == rows[4]
    assert len(NEXT.findall(selected)) == 10
    assert 'class="chunk"' in await page(client, f"{path}?at=99999999")


async def test_a_page_that_is_not_there_is_a_404(alpha):
    for path in ("/nothing", "/run/beta/-/overview", f"{RUN}/nothing", f"{RUN}/runs", "/overview"):
        assert "There is no page" in await page(alpha, path, 404)
    assert "no rollout &#39;ro_x&#39;" in await page(alpha, f"{RUN}/trace/ro_x")
    assert (await alpha.get("/static/..%2f_app.py")).status_code == 404
    assert (await alpha.get("/static/none.js")).status_code == 404
    assert (await alpha.get("/favicon.ico")).headers["content-type"] == "image/svg+xml"

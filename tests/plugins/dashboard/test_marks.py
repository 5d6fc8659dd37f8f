"""Marks of calls: who may set them, how pages show them, what is exported of them."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
from html import unescape

import pytest
from agl_records import MARKS_FILE, MarkFilter, Marks
from click.testing import CliRunner

from agl_core.cli.group import CliState, cli
from agl_core.types import Task
from tests.plugins.dashboard.world import HOSTILE, World, model_call

RUN = "/run/one/-"
OWN = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
ASK = [{"role": "user", "content": "2+2?"}]


async def answered(world, text="four", agent="writer", **fields):
    """Store a rollout with one call; returns the call."""
    claim = await world.begin(**fields)
    spans = model_call(claim, agent, ASK, text)
    await world.end(claim, spans)
    return spans[1].call


@pytest.fixture
async def world(tmp_path):
    opened = await World(tmp_path / "runs" / "one").open()
    yield opened
    await opened.close()


@pytest.fixture
def marks(world):
    return Marks(world.directory / MARKS_FILE)


@pytest.fixture
async def client(visit, world):
    return await visit(world.directory.parent, write=True)


def sent(call, /, **change):
    place = {"rollout": call.rollout_id, "attempt": call.attempt_id, "call": call.id}
    return {**place, **change}


async def send(client, call, /, status=200, headers=OWN, **change):
    answer = await client.post(f"{RUN}/marks/change", json=sent(call, **change), headers=headers)
    assert answer.status_code == status, answer.text
    return answer.text


async def page(client, path, status=200):
    answer = await client.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


async def detail(client, call):
    found = await client.get(
        f"{RUN}/marks/open",
        params={"rollout": call.rollout_id, "attempt": call.attempt_id, "call": call.id},
    )
    return await page(client, found.headers["location"])


async def test_a_call_is_marked_changed_and_cleared(client, world, marks):
    call = await answered(world, task=Task(id="sum", input="x"))
    html = await detail(client, call)
    assert f'data-call="{call.id}"' in html
    assert 'data-set="good" aria-pressed="false"' in html
    html = await send(client, call, verdict="good", by="Ann")
    assert 'data-set="good" aria-pressed="true"' in html
    html = await send(client, call, verdict="bad", note="too short", correction="It is four.")
    assert 'data-set="bad" aria-pressed="true"' in html
    (mark,) = marks.read()
    assert (mark.agent, mark.task, mark.verdict) == ("writer", "sum", "bad")
    assert (mark.note, mark.correction, mark.by) == ("too short", "It is four.", "Ann")
    html = await detail(client, call)
    assert ">too short</textarea>" in html
    assert re.search(r'class="span llm[^>]*data-verdict="bad"', html)
    html = await send(client, call, verdict="", note="", correction="")
    assert "data-clear" in html
    assert marks.read() == []


async def test_only_answers_that_were_recorded_are_marked(client, world):
    call = await answered(world)
    for change, said in (
        ({"call": "none"}, "has no answer 0"),
        ({"choice": 4}, "has no answer 4"),
        ({"rollout": "none", "attempt": "none"}, "has no answer"),
        ({"verdict": "so so"}, "malformed"),
        ({"agent": "other"}, "malformed"),
        ({"choice": "x"}, "malformed"),
    ):
        assert said in await send(client, call, 400, **change)


async def test_without_write_nothing_is_changed_and_marks_are_shown(client, visit, world, marks):
    call = await answered(world)
    await send(client, call, verdict="bad", note="<b>why</b>", correction="4", by="Ann")
    reader = await visit(world.directory.parent)
    said = await send(reader, call, 403, verdict="good")
    assert "start it with agl dashboard --write" in said
    assert (await reader.post("/runs", json={}, headers=OWN)).status_code == 403
    assert marks.read()[0].verdict == "bad"
    html = await detail(reader, call)
    for text in ("data-set", "data-send", "<textarea", "<b>why"):
        assert text not in html
    for text in ("&lt;b&gt;why", "by Ann", 'class="state failed">bad<'):
        assert text in html


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:81"},
        {"origin": "http://localhost", "sec-fetch-site": "cross-site"},
        {"origin": "http://localhost", "sec-fetch-site": "same-site"},
    ],
)
async def test_changes_of_other_sites_are_refused(client, world, marks, headers):
    call = await answered(world)
    said = await send(client, call, 403, headers=headers, verdict="good")
    assert "from pages of this dashboard alone" in said
    assert marks.read() == []


async def test_a_change_needs_the_key_that_pages_need(visit, world, marks):
    call = await answered(world)
    client = await visit(world.directory.parent, key="secret", write=True)
    await send(client, call, 401, verdict="good")
    bearer = {**OWN, "authorization": "Bearer secret"}
    await send(client, call, headers=bearer, verdict="good")
    assert len(marks.read()) == 1


async def test_what_is_sent_is_an_object_of_json_of_a_limited_size(client, world):
    await answered(world)
    path = f"{RUN}/marks/change"
    form = {**OWN, "content-type": "application/x-www-form-urlencoded"}
    for headers, content, said in (
        (form, b"verdict=good", "send application/json"),
        ({**OWN, "content-type": "application/json"}, b"[1]", "no object"),
        ({**OWN, "content-type": "application/json"}, b"{", "no JSON"),
        ({**OWN, "content-type": "application/json"}, b" " * 1_100_000, "larger than 1 MiB"),
    ):
        answer = await client.post(path, content=content, headers=headers)
        assert (answer.status_code, said in answer.text) == (400, True), answer.text
    for other in (f"{RUN}/agents/change", "/run/none/-/marks/change"):
        assert (await client.post(other, json={}, headers=OWN)).status_code == 404


async def test_two_viewers_change_one_mark(visit, client, world, marks):
    call = await answered(world)
    other = await visit(world.directory.parent, write=True)
    await send(client, call, verdict="good")
    await send(other, call, note="seen by the other")
    (mark,) = marks.read()
    assert (mark.verdict, mark.note) == ("good", "seen by the other")


@pytest.mark.parametrize("kind", ["damaged", "foreign", "folder"])
async def test_a_file_that_cannot_be_read_is_named_and_pages_go_on(client, world, marks, kind):
    call = await answered(world)
    if kind == "damaged":
        marks.path.write_bytes(b"no database" * 1000)
    elif kind == "folder":
        marks.path.mkdir()
    else:
        with sqlite3.connect(marks.path) as file:
            file.execute("CREATE TABLE t (a)")
        file.close()
    html = await detail(client, call)
    assert MARKS_FILE in html
    assert 'role="alert"' in html
    assert 'class="said answer"' in html
    assert MARKS_FILE in await page(client, f"{RUN}/marks")
    assert MARKS_FILE in await send(client, call, 400, verdict="good")
    assert MARKS_FILE not in await page(client, f"{RUN}/rollouts")


async def test_hostile_texts_in_marks_are_shown_as_text(client, world, marks):
    for text in HOSTILE:
        call = await answered(world, text, agent=text, task=Task(id=text, input="x"))
        answer = await client.post(
            f"{RUN}/marks/change",
            content=json.dumps(sent(call, verdict="bad", note=text, correction=text, by=text)),
            headers={**OWN, "content-type": "application/json"},
        )
        assert answer.status_code == 200, answer.text
        for html in (answer.text, await detail(client, call), await page(client, f"{RUN}/marks")):
            assert not re.search(r"<(?:img src=x|svg onload|iframe|script>)", html)
    assert len(marks.read()) == len(HOSTILE)


async def many(world, client):
    calls = [await answered(world, f"{number}") for number in range(3)]
    planned = await answered(world, "plan", agent="planner")
    await send(client, calls[0], verdict="good")
    await send(client, calls[1], verdict="bad", note="=1+1")
    await send(client, calls[2], note="hm")
    await send(client, planned, verdict="good")
    return [*calls, planned]


async def test_the_list_filters_and_leads_to_calls(client, world):
    assert "No call is marked yet" in await page(client, f"{RUN}/marks")
    calls = await many(world, client)
    html = await page(client, f"{RUN}/marks")
    opened = re.findall(r'class="open" href="([^"]+)"', html)
    assert len(opened) == 4
    assert calls[3].id in opened[0]
    found = await client.get(unescape(opened[0]))
    assert f"/trace/{calls[3].rollout_id}" in found.headers["location"]
    assert f'data-call="{calls[3].id}"' in await page(client, found.headers["location"])

    async def shown(query):
        return len(re.findall('class="open"', await page(client, f"{RUN}/marks?{query}")))

    assert await shown("verdict=good") == 2
    assert await shown("verdict=none") == 1
    assert await shown("agent=planner") == 1
    assert await shown("agent=planner&verdict=bad") == 0
    assert await shown("verdict=nonsense") == 4
    assert "not a place" in await page(client, f"{RUN}/marks?after=[1]")


async def test_the_list_turns_pages(client, world, monkeypatch):
    monkeypatch.setattr("agl_dashboard.panels._marks.PAGE", 3)
    await many(world, client)
    html = await page(client, f"{RUN}/marks")
    following = unescape(re.search(r'rel="next" href="([^"]+)"', html)[1])
    html = await page(client, following)
    assert len(re.findall('class="open"', html)) == 1
    assert 'rel="next" aria-disabled' in html


async def test_marks_are_exported_as_rows(client, world):
    calls = await many(world, client)
    answer = await client.get(f"{RUN}/marks/marks.jsonl?verdict=bad")
    (row,) = map(json.loads, answer.text.splitlines())
    assert (row["call"], row["verdict"], row["note"]) == (calls[1].id, "bad", "=1+1")
    answer = await client.get(f"{RUN}/marks/marks.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [each["note"] for each in rows] == ["", "hm", "'=1+1", ""]


async def test_marks_are_exported_for_training(client, world):
    calls = await many(world, client)
    html = await page(client, f"{RUN}/marks?form=sft")
    assert "<b>2</b> rows of 4 marks" in html
    assert "<td>marked bad</td>" in html
    answer = await client.get(f"{RUN}/marks/sft.jsonl")
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [row["messages"][-1]["content"] for row in rows] == ["0", "plan"]
    assert 'filename="sft.jsonl"' in answer.headers["content-disposition"]
    answer = await client.get(f"{RUN}/marks/preferences.jsonl")
    (row,) = map(json.loads, answer.text.splitlines())
    assert (row["prompt"], row["rejected"][0]["content"]) == (ASK, "1")
    html = await page(client, f"{RUN}/marks?form=preferences")
    assert "<b>1</b> rows of 4 marks" in html
    assert calls[0].id


async def test_marks_of_a_live_run_are_of_its_calls(client, world, marks):
    claim = await world.begin()
    spans = model_call(claim, "writer", ASK, "four")
    await world.store.add_spans([spans[1]])
    await send(client, spans[1].call, verdict="good")
    more = model_call(claim, "writer", ASK, "five")
    await world.end(claim, [*spans[:1], *more])
    await send(client, more[1].call, verdict="bad")
    found = marks.read(MarkFilter(rollout=claim.rollout.id))
    assert [mark.verdict for mark in found] == ["bad", "good"]


async def test_a_store_keeps_its_marks_in_the_file_that_was_named(visit, world, tmp_path):
    call = await answered(world)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    other = tmp_path / "elsewhere" / "records.db"
    with sqlite3.connect(world.directory / "store.db") as source, sqlite3.connect(other) as target:
        source.backup(target)
    source.close()
    target.close()
    client = await visit(other, write=True, marks=tmp_path / "my.db")
    client.sources.check_marks()
    path = "/run/elsewhere/-/marks/change"
    answer = await client.post(path, json=sent(call, verdict="good"), headers=OWN)
    assert answer.status_code == 200, answer.text
    assert len(Marks(tmp_path / "my.db").read()) == 1
    none = await visit(other, write=True)
    answer = await none.post(path, json=sent(call, verdict="good"), headers=OWN)
    assert "name one with --marks" in answer.text
    assert "--marks FILE" in await page(none, "/run/elsewhere/-/marks")


def test_writing_needs_a_place_for_marks(tmp_path):
    def dashboard(*arguments):
        return CliRunner().invoke(cli, ["dashboard", *map(str, arguments)], obj=CliState())

    for target in ("http://127.0.0.1:9", tmp_path / "lone.db"):
        (tmp_path / "lone.db").touch()
        found = dashboard(target, "--write", "--port", "0")
        assert found.exit_code == 2
        assert "marks are kept with --marks FILE" in found.output
    found = dashboard(tmp_path, "--marks", tmp_path / "m.db", "--port", "0")
    assert (found.exit_code, "is a folder of runs" in found.output) == (2, True)


async def test_a_call_is_marked_where_its_tokens_are_shown(client, visit, world, marks):
    call = await answered(world)
    path = f"{RUN}/tokens/{call.rollout_id}?call={call.id}"
    html = await page(client, path)
    assert f'data-send="{RUN}/marks/change"' in html
    assert f'data-call="{call.id}"' in html
    assert 'src="/static/marks.js' in html
    await send(client, call, verdict="bad")
    assert 'data-verdict="bad"' in await page(client, path)
    shown = await page(await visit(world.directory.parent), path)
    assert "data-send" not in shown
    assert '<span class="state failed">bad</span>' in shown

"""Rows of pages as files: lines of JSON, and CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from html import unescape

import pytest
from agl_dashboard._rows import rows_file, rows_kind
from agl_records.jsonl import read_export

from tests.plugins.dashboard.test_pages import counted

RUN = "/run/alpha/-"


@pytest.fixture
async def alpha(visit, runs):
    client = await visit(runs)
    await counted(client)
    return client


async def exported(client, path):
    """Return the rows that a page's links lead to, as JSON, after a look at those in CSV."""
    html = (await client.get(path)).text
    lines, cells = re.findall(r'href="([^"]+)" download>(?:JSON lines|CSV)<', html)[:2]
    answer = await client.get(unescape(lines))
    assert answer.status_code == 200, answer.text
    assert "attachment" in answer.headers["content-disposition"]
    rows = [json.loads(line) for line in answer.text.splitlines()]
    answer = await client.get(unescape(cells))
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    table = list(csv.reader(io.StringIO(answer.text)))
    assert table[0] == [*rows[0]]
    assert len(table) == len(rows) + 1
    return rows


async def test_runs(alpha):
    (row,) = await exported(alpha, "/runs?sort=score")
    assert (row["run"], row["state"], row["step"], row["steps"]) == ("alpha", "finished", 3, 3)
    assert (row["reward"], row["score"]) == pytest.approx((0.6, 0.9))


async def test_steps_of_an_interval(alpha):
    rows = await exported(alpha, f"{RUN}/overview?steps=2-3")
    assert [row["step"] for row in rows] == [2, 3]
    assert rows[0]["metrics"]["loss"] == 0.5


async def test_rollouts_of_a_filter(alpha):
    rows = await exported(alpha, f"{RUN}/rollouts?mode=val&sort=reward&order=up")
    assert [row["reward"] for row in rows] == [0.0, 1.5, 1.5, 1.5]


async def test_agents(alpha):
    rows = {row["agent"]: row for row in await exported(alpha, f"{RUN}/agents?mode=train")}
    assert rows.keys() == {"planner", "writer"}
    assert (rows["writer"]["calls"], rows["planner"]["sampled_tokens"]) == (7, 14)


async def test_versions_of_prompts(alpha):
    rows = await exported(alpha, f"{RUN}/prompts")
    assert [(row["version"], row["parent"], row["chosen"]) for row in rows] == [
        ("aaaa1111", "", False),
        ("bbbb2222", "aaaa1111", True),
    ]
    assert rows[1]["texts"] == {"system": "Answer <b>briefly</b> and kindly."}


async def test_tasks_of_two_evaluations(alpha):
    rows = await exported(alpha, "/compare?a=alpha@0&b=alpha@3")
    assert [(row["task"], row["difference"]) for row in rows] == [("one", 1.5), ("two", 0.0)]
    assert rows[0]["rollout_a"].startswith("ro_")
    answer = await alpha.get("/compare/tasks.jsonl")
    assert (answer.status_code, answer.text) == (200, "")


async def test_a_rollout_is_exported_as_the_store_exports_it(alpha):
    rollout = (await exported(alpha, f"{RUN}/rollouts?mode=val"))[0]["id"]
    html = (await alpha.get(f"{RUN}/trace/{rollout}")).text
    path = unescape(re.search(r'href="([^"]+)" download', html)[1])
    found = list(read_export((await alpha.get(path)).text.splitlines()))
    assert [each.id for each in found if hasattr(each, "attempts")] == [rollout]
    assert len([each for each in found if hasattr(each, "kind")]) == 9


async def content(answer):
    return b"".join([piece async for piece in answer.body_iterator]).decode()


async def test_cells_are_safe_in_a_spreadsheet_and_hold_any_text():
    rows = [
        {"a": "=1+1", "b": -1.5, "c": None, "d": ["x"]},
        {"a": "@x\ud800", "b": True, "d": {"k": 'say "no"'}},
        {"a": "two\nlines, no more", "b": 1, "c": "-1", "e": "left out"},
    ]
    text = await content(rows_file("r", "csv", rows))
    assert list(csv.reader(io.StringIO(text, newline=""))) == [
        ["a", "b", "c", "d"],
        ["'=1+1", "-1.5", "", '["x"]'],
        ["'@x\ufffd", "True", "", '{"k":"say \\"no\\""}'],
        ["two\nlines, no more", "1", "'-1", ""],
    ]
    text = await content(rows_file("r", "jsonl", rows))
    assert [json.loads(line)["a"] for line in text.splitlines()] == [row["a"] for row in rows]


def test_only_files_of_rows_are_rows():
    assert [rows_kind(each, "runs") for each in ("runs.csv", "runs.jsonl", "runs.xml", "")] == [
        "csv",
        "jsonl",
        None,
        None,
    ]

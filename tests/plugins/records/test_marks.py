"""What people say of answers: the file of marks, and what is exported of it."""

from __future__ import annotations

import asyncio
import io
import json
import multiprocessing
import sqlite3
from itertools import pairwise

import pytest
from agl_imitation._conversations import read_examples
from agl_records import (
    Mark,
    MarkChange,
    MarkedAnswer,
    MarkFilter,
    Marks,
    export_marks,
    export_marks_from,
)
from agl_records._marks import MARKS_FILE
from agl_testing.attempts import ScriptedAttempt
from click.testing import CliRunner
from msgspec.structs import replace

from agl_core.cli.group import CliState, cli
from agl_core.errors import StoreError
from tests.plugins.records.recorded import Run

ASK = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "?"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ASKED = [{"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}]


@pytest.fixture
def marks(tmp_path):
    return Marks(tmp_path / MARKS_FILE)


def answer(number=1, **fields):
    given = {"call": f"ca_{number}", "rollout": f"ro_{number}", "attempt": "at", "agent": "writer"}
    return MarkedAnswer(**{**given, **fields})


def test_a_mark_changes_field_by_field_and_ends_when_nothing_is_left(marks):
    assert marks.read() == []
    assert not marks.path.exists()
    first = marks.change(answer(), MarkChange(verdict="good", by=" Ann "))
    assert (first.verdict, first.by, first.note) == ("good", "Ann", "")
    marks.change(answer(), MarkChange(note=" why\ud800 "))
    second = marks.change(answer(), MarkChange(verdict="bad", correction="Four."))
    assert (second.verdict, second.note, second.correction) == ("bad", "why\ufffd", "Four.")
    assert (second.by, second.at >= first.at) == ("Ann", True)
    assert marks.read() == [second]
    marks.change(answer(), MarkChange(verdict="", note=""))
    assert marks.read()[0].correction == "Four."
    assert marks.change(answer(), MarkChange(correction=" ")) is None
    assert marks.read() == []


def test_marks_are_read_by_filter_page_by_page(marks):
    for number in range(6):
        verdict = ("good", "bad", "")[number % 3]
        agent = "writer" if number < 4 else "planner"
        change = MarkChange(verdict=verdict, note="n")
        marks.change(answer(number, agent=agent, choice=number % 2), change)
    found = marks.read()
    assert all(one.at >= other.at for one, other in pairwise(found))
    pages = [marks.read(limit=4)]
    pages.append(marks.read(after=pages[0][-1].place, limit=4))
    assert [*pages[0], *pages[1]] == found
    assert {mark.call for mark in marks.read(MarkFilter(verdict="bad"))} == {"ca_1", "ca_4"}
    assert {mark.call for mark in marks.read(MarkFilter(verdict="none"))} == {"ca_2", "ca_5"}
    planned = marks.read(MarkFilter(agent="planner", verdict="bad"))
    assert [mark.call for mark in planned] == ["ca_4"]
    assert [mark.call for mark in marks.read(MarkFilter(rollout="ro_3"))] == ["ca_3"]
    assert marks.agents() == ["planner", "writer"]


def _mark_many(path, first):
    for number in range(first, first + 40):
        Marks(path).change(answer(number % 50), MarkChange(verdict="good", note=f"{number}"))


def test_two_programs_mark_at_once(marks):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_mark_many, args=(marks.path, at)) for at in (0, 20)]
    for each in writers:
        each.start()
    for each in writers:
        each.join(120)
    assert [each.exitcode for each in writers] == [0, 0]
    assert len(marks.read()) == 50


def test_a_change_that_failed_leaves_the_mark(marks):
    marks.change(answer(), MarkChange(verdict="good"))
    with sqlite3.connect(marks.path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        fast = Marks(marks.path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("agl_records._marks._BUSY_S", 0.0)
            with pytest.raises(StoreError, match="keeps the file locked: try again"):
                fast.change(answer(), MarkChange(verdict="bad"))
            with pytest.raises(StoreError, match="locked"):
                fast.read()
    other.close()
    assert marks.read()[0].verdict == "good"


def _newer(path):
    Marks(path).change(answer(), MarkChange(verdict="good"))
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 2")
    file.close()


def _other(path):
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE rollouts (id TEXT)")
    file.close()


def _invalid(path):
    Marks(path).change(answer(), MarkChange(verdict="good"))
    with sqlite3.connect(path) as file:
        file.execute("UPDATE marks SET verdict = 'so so'")
    file.close()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_bytes(b"no database" * 100), "the file is damaged: move it away"),
        (lambda path: path.mkdir(), "make the file and its folder writable"),
        (_newer, "form 2, of a newer agl-core"),
        (_other, "a database, but not one of marks"),
        (_invalid, "the file is damaged"),
    ],
)
def test_a_file_that_has_no_marks_is_an_error(marks, make, said):
    make(marks.path)
    with pytest.raises(StoreError, match=said):
        marks.read()
    if make is not _invalid:
        with pytest.raises(StoreError, match=said):
            marks.change(answer(), MarkChange(verdict="good"))


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(StoreError, match="make the file and its folder writable"):
        Marks(tmp_path / "none" / MARKS_FILE).change(answer(), MarkChange(verdict="good"))


class Answers:
    """A run in which one agent answers; every rollout is one call with one answer or more."""

    def __init__(self, run):
        self.run = run
        self.found = []

    async def add(self, *texts, messages=ASK, tools=(), choice=None, **call):
        script = ScriptedAttempt()
        script.call("writer", [1], [2], messages=list(messages))
        (known,) = [span.call for span in script.spans if span.call is not None]
        choices = [
            replace(known.choices[0], index=at, text=text, **(choice or {}))
            for at, text in enumerate(texts)
        ]
        made = {"choices": choices, "tools": list(tools), "complete": True, **call}
        script.spans = [
            replace(span, call=replace(known, **made)) if span.call is known else span
            for span in script.spans
        ]
        rollout = await self.run.add(script)
        stored = await self.run.store.spans([rollout])
        self.found.append(next(span.call for span in stored if span.call is not None))
        return self.found[-1]

    @staticmethod
    def mark(call, verdict="", **fields):
        return Mark(
            call=call.id,
            rollout=call.rollout_id,
            attempt=call.attempt_id,
            agent="writer",
            verdict=verdict,
            **fields,
        )

    async def export(self, form, *marks):
        stream = io.BytesIO()
        summary = await export_marks_from(self.run.store, marks, stream, form)
        rows = [json.loads(line) for line in stream.getvalue().splitlines()]
        assert summary.rows == len(rows)
        assert summary.marks == len(marks)
        return rows, summary.left_out


@pytest.fixture
def said(run):
    return Answers(run)


async def test_good_answers_and_corrections_become_conversations(said, tmp_path):
    earlier = [*ASK, {"role": "assistant", "content": "", "tool_calls": ASKED}]
    earlier.append({"role": "tool", "content": "4", "tool_call_id": "1"})
    good = await said.add("Four.", messages=earlier, tools=[TOOL])
    asked = await said.add("", choice={"tool_calls": ASKED, "finish_reason": "tool_calls"})
    bad = await said.add("Five.", choice={"finish_reason": "length"})
    rows, left_out = await said.export(
        "sft",
        said.mark(good, "good"),
        said.mark(asked, "good", note="looks it up"),
        said.mark(bad, "bad", correction="Six."),
    )
    assert left_out == {}
    context = {**earlier[2], "weight": 0}
    four = {"role": "assistant", "content": "Four.", "weight": 1}
    assert rows[0] == {
        "agent": "writer",
        "messages": [*ASK, context, earlier[3], four],
        "tools": [TOOL],
    }
    assert rows[1]["messages"][-1]["tool_calls"] == ASKED
    assert rows[2] == {
        "agent": "writer",
        "messages": [*ASK, {"role": "assistant", "content": "Six.", "weight": 1}],
    }
    path = tmp_path / "sft.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [(each.agent, each.trained) for each in read_examples(path)] == [
        ("writer", (4,)),
        ("writer", (2,)),
        ("writer", (2,)),
    ]


async def test_marks_without_an_answer_to_imitate_are_counted(said):
    whole = await said.add("Four.")
    cut = await said.add("Fo", choice={"finish_reason": "length"})
    broken = await said.add("Fo", complete=False)
    inside = await said.add("so four. </think> Four.")
    rows, left_out = await said.export(
        "sft",
        said.mark(whole, "bad"),
        said.mark(whole, note="?", choice=0),
        said.mark(whole, "good", choice=3),
        said.mark(cut, "good"),
        said.mark(broken, "good"),
        said.mark(inside, "good"),
        replace(said.mark(whole, "good"), call="ca_gone"),
        replace(said.mark(whole, "good"), rollout="ro_gone", attempt="at_gone"),
    )
    assert rows == []
    assert left_out == {
        "answer_cut": 2,
        "marked_bad": 1,
        "no_answer": 1,
        "no_verdict": 1,
        "record_gone": 2,
        "rendered_otherwise": 1,
    }


def texts(rows):
    return sorted((row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows)


async def test_answers_to_the_same_prompt_become_pairs(said):
    four, five, six = [await said.add(text) for text in ("4", "5", "6")]
    other = await said.add("7", messages=ASK[1:])
    tools = await said.add("8", tools=[TOOL])
    rows, left_out = await said.export(
        "preferences",
        said.mark(four, "good"),
        said.mark(five, "bad"),
        said.mark(six, "bad"),
        said.mark(other, "bad"),
        said.mark(tools, "good"),
    )
    assert texts(rows) == [("4", "5"), ("4", "6")]
    assert rows[0] == {
        "agent": "writer",
        "prompt": ASK,
        "chosen": [{"role": "assistant", "content": "4"}],
        "rejected": [{"role": "assistant", "content": "5"}],
    }
    assert left_out == {"no_partner": 2}


async def test_a_correction_beats_its_answer_and_the_bad_ones(said):
    four, five, six = [await said.add(text) for text in ("4", "5", "6")]
    rows, left_out = await said.export(
        "preferences",
        said.mark(four, "good", correction="four"),
        said.mark(five, "bad"),
        said.mark(six, correction="six"),
    )
    assert left_out == {}
    assert texts(rows) == [("four", "4"), ("four", "5"), ("six", "5"), ("six", "6")]


async def test_choices_of_one_call_are_a_pair(said):
    call = await said.add("good one", "bad one")
    rows, left_out = await said.export(
        "preferences", said.mark(call, "good"), said.mark(call, "bad", choice=1)
    )
    assert (texts(rows), left_out) == ([("good one", "bad one")], {})


async def test_pairs_without_a_difference_or_a_whole_answer_are_counted(said):
    same, again, twin = [await said.add("4") for _ in range(3)]
    cut = await said.add("9", messages=ASK[:1], choice={"finish_reason": "length"})
    lone = await said.add("9", messages=[*ASK, *ASK])
    rows, left_out = await said.export(
        "preferences",
        said.mark(same, "good"),
        said.mark(again, "bad"),
        said.mark(twin, note="only a note"),
        said.mark(cut, "bad", correction="ten"),
        said.mark(lone, "good"),
        replace(said.mark(lone, "good"), call="ca_gone"),
    )
    assert rows == []
    assert left_out == {
        "answer_cut": 1,
        "answers_alike": 2,
        "no_partner": 1,
        "no_verdict": 1,
        "record_gone": 1,
    }


async def test_equal_pairs_are_written_once_with_arguments_as_objects(said):
    asked = {"tool_calls": ASKED, "finish_reason": "tool_calls"}
    good, again = [await said.add("", tools=[TOOL], choice=asked) for _ in range(2)]
    odd = [{**ASKED[0], "function": {"name": "look", "arguments": "[1"}}]
    bad = await said.add("", tools=[TOOL], choice={**asked, "tool_calls": odd})
    rows, left_out = await said.export(
        "preferences", said.mark(good, "good"), said.mark(again, "good"), said.mark(bad, "bad")
    )
    assert left_out == {}
    (row,) = rows
    assert row["tools"] == [TOOL]
    assert row["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert row["rejected"][0]["tool_calls"] == odd


def written(directory, *texts):
    """A run with answers to one prompt; returns them as answers to mark."""

    async def write():
        said = Answers(Run(directory))
        await said.run.open()
        calls = [await said.add(text) for text in texts]
        await said.run.store.close()
        return [
            MarkedAnswer(call=c.id, rollout=c.rollout_id, attempt=c.attempt_id, agent="writer")
            for c in calls
        ]

    return asyncio.run(write())


def test_the_command_writes_marked_calls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "agl_runs" / "run"
    (marked,) = written(runs, "Four.")
    Marks(runs / MARKS_FILE).change(marked, MarkChange(verdict="good"))
    Marks(runs / MARKS_FILE).change(replace(marked, call="gone"), MarkChange(verdict="good"))

    def agl(*arguments):
        return CliRunner().invoke(cli, ["export", *map(str, arguments)], obj=CliState())

    result = agl("run", "--marks", "sft", "--output", "out/sft.jsonl")
    assert result.exit_code == 0, result.output
    assert "1 rows of 2 marks in out/sft.jsonl" in result.stderr
    assert "marks left out: record_gone 1" in result.stderr
    (row,) = (tmp_path / "out" / "sft.jsonl").read_text().splitlines()
    assert json.loads(row)["messages"][-1]["content"] == "Four."
    assert agl(runs / "store.db", "--marks", "sft").stdout == f"{row}\n"
    (tmp_path / "other.db").write_bytes((runs / MARKS_FILE).read_bytes())
    (runs / MARKS_FILE).unlink()
    result = agl("run", "--marks", "sft")
    assert (result.exit_code, "Mark calls in the browser" in result.output) == (2, True)
    result = agl("run", "--marks", "sft", "--marks-file", "other.db")
    assert result.stdout == f"{row}\n"
    result = agl("run", "--marks", "sft", "--marks-file", "none.db")
    assert (result.exit_code, "no file 'none.db'" in result.output) == (2, True)


def test_the_function_exports_pairs(tmp_path):
    for answer_, verdict in zip(written(tmp_path / "run", "4", "5"), ("good", "bad"), strict=True):
        Marks(tmp_path / "m.db").change(answer_, MarkChange(verdict=verdict))
    path = tmp_path / "pairs.jsonl"
    summary = export_marks(tmp_path / "run", path, form="preferences", marks=tmp_path / "m.db")
    assert (summary.rows, summary.marks, summary.output) == (1, 2, str(path))
    assert texts([json.loads(path.read_text())]) == [("4", "5")]

"""Calls that people marked are conversations of the algorithm ``sft``."""

from __future__ import annotations

import asyncio
import json

from agl_records import MARKS_FILE, MarkChange, MarkedAnswer, Marks, export_marks
from agl_testing.attempts import ScriptedAttempt
from msgspec.structs import replace

import agl_core as agl
from tests.plugins.records.recorded import Run

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ASKED = [{"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}]
ASK = [{"role": "user", "content": "price1?"}]
TOLD = [
    *ASK,
    {"role": "assistant", "content": None, "tool_calls": ASKED},
    {"role": "tool", "content": "9", "tool_call_id": "1"},
]


async def _stored(directory):
    """Store a call that asks for a tool, one that answers after it, and a wrong answer."""
    run = Run(directory)
    await run.open()
    found = []
    for messages, said in (
        (ASK, {"text": "", "tool_calls": ASKED, "finish_reason": "tool_calls"}),
        (TOLD, {"text": "9 euros"}),
        (ASK, {"text": "8 euros"}),
    ):
        script = ScriptedAttempt()
        script.call("writer", [1], [2], messages=messages)
        (call,) = [span.call for span in script.spans if span.call is not None]
        choice = replace(call.choices[0], **said)
        script.spans = [
            replace(span, call=replace(call, choices=[choice], tools=[TOOL], complete=True))
            if span.call is call
            else span
            for span in script.spans
        ]
        rollout = await run.add(script)
        (stored,) = [each.call for each in await run.store.spans([rollout]) if each.call]
        found.append(
            MarkedAnswer(call=stored.id, rollout=rollout, attempt=stored.attempt_id, agent="writer")
        )
    await run.store.close()
    return found


def test_two_steps_are_trained_on_marked_calls(tmp_path, model_path):
    marks = Marks(tmp_path / "marked" / MARKS_FILE)
    asks, answers, wrong = asyncio.run(_stored(tmp_path / "marked"))
    for each in (asks, answers):
        marks.change(each, MarkChange(verdict="good"))
    marks.change(wrong, MarkChange(verdict="bad", correction="9 euros"))
    path = tmp_path / "sft.jsonl"
    assert export_marks(tmp_path / "marked", path).rows == 3
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["messages"][-1]["content"] for row in rows] == [None, "9 euros", "9 euros"]
    report = agl.train(
        config={
            "name": "taught",
            "directory": str(tmp_path),
            "agents": ["writer"],
            "model": model_path,
            "engine": {"name": "torch", "device": "cpu", "threads": 1},
            "algorithm": {"name": "sft", "data": [str(path)], "lr": 3e-3, "batch_size": 3},
            "train": {"steps": 2, "tasks_per_step": 1},
        },
        progress=False,
    )
    first, second = report.steps
    assert first.lost == second.lost == {}
    assert second.metrics["loss"] < first.metrics["loss"]

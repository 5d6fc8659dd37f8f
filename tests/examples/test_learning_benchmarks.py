"""What the benchmarks `imitation` and `together` compute from reports of runs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from agl_demo import world
from agl_demo.rules import IDLE, RULES, WRITER

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


def test_conversations_are_right_answers_to_training_questions():
    imitation = importlib.import_module("bench_imitation")
    lines = imitation.conversations(5).splitlines()
    tasks = world.tasks("train", 5, seed=1)
    assert len(lines) == 5
    for line, task in zip(lines, tasks, strict=True):
        conversation = json.loads(line)
        assert conversation["agent"] == "writer"
        assert world.reward(task, conversation["messages"][-1]["content"]) == 1.0


def test_an_arm_reaches_the_target_in_the_first_evaluation_with_its_score():
    imitation = importlib.import_module("bench_imitation")
    report = {
        "steps": [
            {"step": 1, "rollouts": 0},
            {"step": 2, "rollouts": 64},
            {"step": 3, "rollouts": 64},
        ],
        "evaluations": [
            {"step": step, "score": {"mean": mean}}
            for step, mean in ((0, 0.2), (1, 0.5), (2, 0.8), (3, 0.7))
        ],
    }
    found = imitation.curve(report)
    assert found == [
        {"rollouts": 0, "score": 0.5},
        {"rollouts": 64, "score": 0.8},
        {"rollouts": 128, "score": 0.7},
    ]
    assert [imitation.rollouts_until(target, found) for target in (0.5, 0.7, 0.9)] == [0, 64, None]
    seeds = [
        {"target": 0.7, "reached": {"grpo": 128, "sft_grpo": 64}},
        {"target": 0.9, "reached": {"grpo": 1280, "sft_grpo": None}},
    ]
    summary = imitation.summary(seeds)
    assert summary["reached"]["sft_grpo"]["mean"] == (64 + 1280) / 2
    assert summary["not_reached"] == {"grpo": 0, "sft_grpo": 1}
    assert summary["saved"]["mean"] == 32


def test_intervals_are_those_of_students_t():
    interval = importlib.import_module("learning").interval
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found["mean"] == 3.0
    assert found["high"] - 3.0 == pytest.approx(1.9634, abs=1e-3)
    assert interval([2.0]) == {"mean": 2.0, "low": 2.0, "high": 2.0, "n": 1}


def test_the_scripted_editor_changes_one_sentence(monkeypatch):
    monkeypatch.setattr("agl_demo.agent.WRITER_SYSTEM", world.WRITER_SYSTEM)
    editor = importlib.import_module("together_world").editor
    text, seen = WRITER, set()
    for turn in range(200):
        request = f"{turn}\n<current>\n{text}\n</current>"
        answer = editor([{"role": "user", "content": request}], "editor")
        new = answer.removeprefix("```\n").removesuffix("\n```")
        before, after = (
            {each for each in (*RULES.values(), *IDLE) if each in said} for said in (text, new)
        )
        assert len(before ^ after) == 1
        assert new.startswith(WRITER)
        text = new
        seen |= after
    assert seen == {*RULES.values(), *IDLE}


def test_every_arm_has_equal_rollouts():
    together = importlib.import_module("bench_together")
    evaluated = 24
    totals = {
        arm: evaluated * (1 + len(phases))
        + sum(each.get("rollouts") or each["steps"] * together.STEP for each in phases)
        for arm, phases in together.ARMS.items()
    }
    assert set(totals.values()) == {688}, totals

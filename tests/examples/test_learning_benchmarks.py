"""What the benchmarks `imitation` and `together` compute from reports of runs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from agl_demo import world
from agl_demo.rules import IDLE, RULES, WRITER
from agl_demo.training import held_out_tasks, train_tasks

from agl_core._builtin import load_plugins
from agl_core.app.names import check_phases
from agl_core.config.loader import resolve

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


def test_conversations_are_right_answers_about_items_of_no_task():
    imitation = importlib.import_module("bench_imitation")
    lines = imitation.conversations(imitation.CONVERSATIONS).splitlines()
    asked = [world.PriceTask(**task.input) for task in imitation.other_tasks()]
    assert len(lines) == imitation.CONVERSATIONS
    for line, task in zip(lines, asked, strict=False):
        conversation = json.loads(line)
        assert conversation["agent"] == "writer"
        assert world.reward(task, conversation["messages"][-1]["content"]) == 1.0
    tasks = {task.input["item"] for task in (*train_tasks(), *held_out_tasks())}
    assert not tasks & {task.item for task in asked}


def test_an_arm_reaches_the_target_with_the_first_three_steps_of_its_score():
    imitation = importlib.import_module("bench_imitation")
    rewards = [0.25, 0.5, 0.75, 0.625, 0.875, 0.9375]
    reached = [imitation.rollouts_until(target, rewards) for target in (0.5, 0.7, 0.8, 0.9)]
    assert reached == [3 * 64, 5 * 64, 5 * 64 + 64, None]
    held_out = {"grpo": [0.2, 0.8], "sft_grpo": [0.2, 0.9]}
    seeds = [
        {"target": 0.7, "reached": {"grpo": 384, "sft_grpo": 192}, "held_out": held_out},
        {"target": 0.9, "reached": {"grpo": 1280, "sft_grpo": None}, "held_out": held_out},
    ]
    summary = imitation.summary(seeds)
    assert summary["reached"]["sft_grpo"]["mean"] == (192 + 1280) / 2
    assert summary["not_reached"] == {"grpo": 0, "sft_grpo": 1}
    assert summary["saved"]["mean"] == 96
    assert summary["held_out"]["sft_grpo"]["mean"] == 0.9


def test_intervals_are_those_of_students_t():
    interval = importlib.import_module("learning").interval
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found["mean"] == 3.0
    assert found["high"] - 3.0 == pytest.approx(1.9634, abs=1e-3)
    assert interval([2.0]) == {"mean": 2.0, "low": 2.0, "high": 2.0, "n": 1}


def test_the_scripted_editor_changes_one_sentence():
    editor = importlib.import_module("writer_world").editor
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


def test_the_configuration_of_every_arm_is_valid(tmp_path):
    imitation, together = map(importlib.import_module, ("bench_imitation", "bench_together"))
    made = [imitation.settings(tmp_path, arm, 0) for arm in imitation.ARMS]
    made += [together.settings(arm, 0, "demo") for arm in together.ARMS]
    for each in made:
        check_phases(resolve(each), load_plugins())

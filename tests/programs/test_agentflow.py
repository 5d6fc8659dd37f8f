"""A planner that is trained among three roles that are not, by one reward or by one a turn."""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager

import pytest
from agl_testing.fake_openai import FakeOpenAI

from tests.programs.running import ROOT, imported, started, train

FOLDER = ROOT / "examples" / "17_agentflow"
FEW = ("train.steps=2", "train.tasks_per_step=1", "algorithm.group_size=4")


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "program", raising=False)
    yield importlib.import_module("program")
    del sys.modules["program"]


def solve(program, monkeypatch, answer):
    """Solve a way; ``answer`` maps a role and what it reads to its answer."""
    roles, turns = [], []

    @contextmanager
    def role(name, turn):
        roles.append(name)
        yield

    def script(body):
        return answer(roles[-1], body["messages"][-1]["content"])

    with FakeOpenAI(script) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        doors = [*program.DOORS, "locked", "dark"]
        said = program.solve(doors, role=role, turn=lambda n, opened: turns.append(opened))
        program.client().close()
    return said, roles, turns


def roles_of(program, tool=None):
    def answer(role, read):
        if role == "planner":
            return tool or program.DOORS[read.removeprefix("The door is ").removesuffix(".")]
        if role == "executor":
            return f"use {read.removeprefix('Tool: ').removesuffix('.')}"
        left = int(read.removeprefix("Doors left: ").removesuffix("."))
        if role == "verifier":
            return "continue" if left else "stop"
        return program.LOST if left else program.OUT

    return answer


def test_the_program_does_not_know_that_it_is_trained():
    assert not {name for name in imported(FOLDER / "program.py") if name.startswith("agl")}


def test_right_tools_lead_out_in_eight_turns(program, monkeypatch):
    said, roles, turns = solve(program, monkeypatch, roles_of(program))
    assert said == program.OUT
    assert turns == [True] * 8
    assert roles == ["planner", "executor", "verifier"] * 8 + ["generator"]


def test_a_planner_that_repeats_a_wrong_tool_is_lost_after_ten_turns(program, monkeypatch):
    said, roles, turns = solve(program, monkeypatch, roles_of(program, tool="hose"))
    assert said == program.LOST
    assert turns == [False] * program.MOST_TURNS
    assert roles[-1] == "generator"


def test_two_steps_train_the_planner_alone_by_the_last_reward(tmp_path):
    report = train(FOLDER, tmp_path, *FEW, "rollout.temperature=1.5")
    assert set(report["agents"]) == {"planner"}
    others = report["policies"]["others"]
    assert others["sha256_before"] == others["sha256_after"]
    assert set(report["rows"]["by_agent"]) <= {"planner"}
    assert report["calls"] >= 8 * 8


def test_two_steps_train_the_planner_by_the_reward_of_each_turn(tmp_path):
    agent = FOLDER / "run_agent.py"
    done = started(
        FOLDER,
        tmp_path,
        *FEW,
        "tasks.val=null",
        f"agent={agent}:run_agent_per_turn",
        "channel_weights.planner=0",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "turn" in done.stdout + done.stderr

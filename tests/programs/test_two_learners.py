"""Two agents of one game, each trained with an adapter of its own, at once."""

from __future__ import annotations

import importlib
import sys

import pytest
from agl_testing.fake_openai import FakeOpenAI

from tests.programs.running import ROOT, imported, train

FOLDER = ROOT / "examples" / "18_two_learners"


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "program", raising=False)
    yield importlib.import_module("program")
    del sys.modules["program"]


def test_the_program_does_not_know_that_it_is_trained():
    assert not {name for name in imported(FOLDER / "program.py") if name.startswith("agl")}


@pytest.mark.parametrize(
    ("answers", "winner", "legal", "moves"),
    [
        (["3", "2"], "right", True, 2),
        (["3", "1", "1"], "left", True, 3),
        (["3", "3"], "left", False, 2),
        (["0"], "right", False, 1),
        (["two"], "right", False, 1),
        ([""], "right", False, 1),
    ],
)
def test_taking_the_last_stick_wins(program, monkeypatch, answers, winner, legal, moves):
    given = iter(answers)
    with FakeOpenAI(lambda body: next(given)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        game = program.play(5, first="left")
        program.client().close()
    assert (game.winner, game.legal, len(game.moves)) == (winner, legal, moves)
    asked = server.log[0].body["messages"][-1]["content"]
    assert asked == "There are five sticks."


def test_two_steps_train_both_players_and_not_the_start(tmp_path):
    report = train(
        FOLDER, tmp_path, "train.steps=2", "train.tasks_per_step=2", "algorithm.group_size=4"
    )
    changed = {
        name: policy["sha256_before"] != policy["sha256_after"]
        for name, policy in report["policies"].items()
    }
    assert changed == {"left": True, "right": True, "start": False}
    assert set(report["agents"]) == {"left", "right"}
    assert len({report["policies"][name]["sha256_after"] for name in ("left", "right")}) == 2
    assert [step["rollouts"] for step in report["steps"]] == [8, 8]

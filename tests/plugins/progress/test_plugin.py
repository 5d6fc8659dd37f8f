"""The display as runs use it."""

import json
import sys
from functools import partial

from agl_progress._display import PlainProgress
from agl_progress._follow import LogFollower
from agl_testing.plugin_contract import PluginContract
from rich.console import Console

import agl_core as agl
from tests.core.app.conftest import says_yes, two_agents
from tests.core.app.test_facade import PLUGIN, TASKS


class TestPlugin(PluginContract):
    plugin = "agl_progress.plugin"


def config(tmp_path):
    return {
        "directory": str(tmp_path),
        "plugins": [PLUGIN],
        "engine": {"name": "bandit"},
        "model": "bandit",
        "algorithm": {"lr": 1.0, "group_size": 4},
        "train": {"steps": 2, "tasks_per_step": 2},
    }


def test_a_run_from_python_shows_its_progress(tmp_path, capsys):
    """G5: a script is not silent for minutes; its standard output stays its own."""
    agl.train(
        two_agents,
        TASKS,
        agents=["writer"],
        reward=says_yes,
        algorithm="reinforce",
        config=config(tmp_path),
    )

    out, err = capsys.readouterr()
    assert out == ""
    assert "run run: 2 steps" in err
    assert "step 2/2  reward" in err
    assert "weights " in err


def test_a_run_without_progress_shows_nothing_and_writes_its_log(tmp_path, capsys, monkeypatch):
    run = partial(
        agl.train,
        two_agents,
        TASKS,
        agents=["writer"],
        reward=says_yes,
        algorithm="reinforce",
        config=config(tmp_path),
        progress=False,
    )
    run(overrides={"name": "quiet"})
    assert capsys.readouterr() == ("", "")
    lines = (tmp_path / "quiet" / "log.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["event"] for line in lines]
    assert kinds[0] == "started"
    assert kinds.count("step") == 2
    assert kinds[-1] == "finished"

    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "progress")
    run(overrides={"name": "off"})
    assert not (tmp_path / "off" / "log.jsonl").exists()


def test_an_evaluation_from_python_shows_its_score(tmp_path, capsys):
    """G5: as ``agl eval`` does."""
    agl.evaluate(two_agents, TASKS, reward=says_yes, config=config(tmp_path))

    assert "eval at step 0: " in capsys.readouterr().err


def test_a_run_is_watched_by_the_log_that_it_wrote(tmp_path, capsys):
    """Its displays are the panel and the log, which `agl watch` shows."""
    agl.train(
        two_agents,
        TASKS,
        agents=["writer"],
        reward=says_yes,
        algorithm="reinforce",
        config=config(tmp_path),
    )
    shown = capsys.readouterr().err.splitlines()
    display = PlainProgress(Console(file=sys.stdout, width=240))
    follower = LogFollower(tmp_path / "run", display)

    follower.read()

    followed = capsys.readouterr().out.splitlines()
    assert follower.state == "finished"
    assert follower.damaged == 0
    assert [line for line in followed if line in shown] == followed
    assert "step 2/2" in "".join(followed)

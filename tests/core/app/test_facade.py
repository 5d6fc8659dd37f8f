"""What a user calls: `agl.train` and `agl.evaluate`."""

import asyncio
import io
import json
import sys
from pathlib import Path

import pytest

import agl_core as agl
from agl_core._builtin import load_plugins
from agl_core.app import facade
from agl_core.app.facade import Invocation, invoked
from agl_core.config import resolve
from tests.core.app.conftest import says_yes, two_agents
from tests.core.bandit_engine import BanditEngine
from tests.installed import INSTALLED

PLUGIN = str(Path(__file__).with_name("bandit_plugin.py"))
TASKS = [{"input": n} for n in range(4)]


@pytest.fixture
def config(tmp_path: Path) -> dict:
    return {
        "directory": str(tmp_path),
        "plugins": [PLUGIN],
        "engine": {"name": "bandit"},
        "algorithm": {"lr": 1.0, "group_size": 4},
        "train": {"steps": 12, "tasks_per_step": 2},
    }


def train(config: dict, **more) -> agl.Report:
    return agl.train(
        two_agents,
        TASKS,
        agents=["writer"],
        reward=says_yes,
        model="bandit",
        algorithm="reinforce",
        config=config,
        **more,
    )


def test_arguments_win_over_the_configuration_and_overrides_over_both(config, tmp_path) -> None:
    config["model"] = "other"
    train(config, overrides={"train.steps": 1, "algorithm.name": "rloo"})
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["model"] == "bandit"
    assert stored["agents"] == ["writer"]
    assert (stored["train"]["steps"], stored["algorithm"]["name"]) == (1, "rloo")


def test_an_override_reaches_into_lists_and_quoted_names(config, tmp_path) -> None:
    config["rewards"] = [{"name": "exact_match"}]
    overrides = {
        "train.steps": 1,
        "rewards.0.channel": "right",
        'channel_weights."much.better"': 2.0,
    }
    train(config, overrides=overrides)
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["rewards"][0]["channel"] == "right"
    assert stored["channel_weights"] == {"much.better": 2.0}
    assert config["rewards"] == [{"name": "exact_match"}]


@pytest.mark.parametrize("key", ["rewards.0.channel", "seed.x", "train..steps", ""])
def test_an_override_that_leads_nowhere_is_named(config, key) -> None:
    config |= {"seed": 3, "rewards": []}
    with pytest.raises(agl.ConfigError, match="Override of"):
        train(config, overrides={key: 1})


@pytest.mark.parametrize("as_object", [False, True], ids=["mapping", "RunConfig"])
def test_phases_are_an_argument_too(config, as_object) -> None:
    phases = [{"algorithm": "reinforce", "steps": 1}, {"algorithm": "rloo", "steps": 2, "lr": 0.5}]
    config["train"] = {"tasks_per_step": 2}
    given = resolve({**config, "model": "bandit", "agents": ["writer"]}) if as_object else config

    report = train(given, phases=phases)

    assert [step.steps for step in report.steps] == [3, 3, 3]
    with pytest.raises(agl.ConfigError, match=r"train\.steps = 2, but the phases have 3 steps"):
        train(config, phases=phases, overrides={"train.steps": 2})


def test_plugins_of_the_command_line_are_stored_once(config, tmp_path) -> None:
    with invoked(Invocation(plugins=(PLUGIN,))):
        train(config, overrides={"train.steps": 1})
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["plugins"] == [PLUGIN]


def test_a_run_is_evaluated_in_its_own_directory_from_elsewhere(
    config, tmp_path, monkeypatch
) -> None:
    for folder in ("home", "elsewhere"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "home")
    config["directory"] = "runs"
    train(config, overrides={"train.steps": 1})
    run = tmp_path / "home" / "runs" / "run"
    monkeypatch.chdir(tmp_path / "elsewhere")
    agl.evaluate(two_agents, TASKS, reward=says_yes, config=run / "config.json")
    assert (run / "eval" / "store.db").is_file()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_checkpoint_is_scored_as_the_run_that_wrote_it(config) -> None:
    report = train(config)
    tasks = [{"input": n} for n in range(40)]
    trained = agl.evaluate(two_agents, tasks, reward=says_yes, checkpoint=report.best)
    base = agl.evaluate(two_agents, tasks, reward=says_yes, model="bandit", config=config)
    assert base.score.high < trained.score.low
    assert (trained.step, trained.score.n) == (12, 40)


def test_an_evaluation_leaves_the_run_as_it_is(config, tmp_path) -> None:
    report = train(config, overrides={"train.steps": 1})
    run = tmp_path / "run"
    before = (run / "config.json").read_bytes(), (run / "store.db").stat().st_size
    agl.evaluate(
        two_agents,
        TASKS,
        reward=says_yes,
        checkpoint=report.best,
        overrides={"eval.samples": 2, "algorithm.lr": 5.0},
    )
    assert before == ((run / "config.json").read_bytes(), (run / "store.db").stat().st_size)
    assert (run / "eval" / "store.db").is_file()


def test_a_refused_run_leaves_the_configuration_of_the_first(config, tmp_path) -> None:
    train(config, overrides={"train.steps": 1})
    stored = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(agl.ConfigError, match=r"train\.resume = true"):
        train(config, overrides={"algorithm.lr": 5.0})
    with pytest.raises(agl.ConfigError, match="other settings"):
        train(config, overrides={"algorithm.lr": 5.0, "train.resume": True})
    assert (tmp_path / "run" / "config.json").read_bytes() == stored


def test_a_checkpoint_of_no_run_is_named(config, tmp_path) -> None:
    with pytest.raises(agl.ConfigError, match="no run's directory"):
        agl.evaluate(two_agents, TASKS, reward=says_yes, checkpoint=tmp_path / "a" / "b")


async def test_it_works_where_an_event_loop_runs_already(config) -> None:
    """As in a notebook's cell."""
    assert asyncio.get_running_loop().is_running()
    assert len(train(config, overrides={"train.steps": 1}).steps) == 1


async def test_what_fails_in_such_a_place_arrives_there(config) -> None:
    with pytest.raises(agl.ConfigError, match="nobody"):
        train(config, overrides={"agents": ["nobody"]})


def test_an_endpoint_can_be_scored_but_not_trained() -> None:
    with pytest.raises(agl.ConfigError, match="an engine that trains"):
        agl.train(
            two_agents, TASKS, agents=["writer"], reward=says_yes, model="http://127.0.0.1:9/v1"
        )


SHOWN = [
    "first entered",
    "first started run",
    "second started run",
    "first step 1",
    "second step 1",
    "first finished run",
    "second finished run",
    "first left",
]


@pytest.fixture
def displays(config, monkeypatch) -> None:
    """Displays of the run's plugin file, and none of the installed plugins."""
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", f"{INSTALLED},progress")
    config["plugins"] += [str(Path(__file__).with_name("display_plugin.py"))]


@pytest.mark.usefixtures("displays")
def test_a_run_from_python_is_shown_by_every_display_on_standard_error(config, capsys) -> None:
    """G5: a script is not silent for minutes; its standard output stays its own."""
    train(config, overrides={"train.steps": 1})

    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == SHOWN


@pytest.mark.usefixtures("displays")
def test_an_evaluation_from_python_is_shown(config, capsys) -> None:
    """G5: as ``agl eval`` does."""
    agl.evaluate(two_agents, TASKS, reward=says_yes, model="bandit", config=config)

    assert capsys.readouterr().err.splitlines() == [
        "first entered",
        "first evaluation 0",
        "second evaluation 0",
        "first left",
    ]


def test_a_run_without_displays_is_silent(config, capsys, monkeypatch, caplog) -> None:
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", f"{INSTALLED},progress")
    caplog.set_level("DEBUG", "agl_core.app.parts")

    train(config, overrides={"train.steps": 1})

    assert capsys.readouterr() == ("", "")
    shown = [record for record in caplog.records if "progress is not shown" in record.message]
    assert [record.levelname for record in shown] == ["DEBUG"]


@pytest.mark.usefixtures("displays")
def test_progress_can_be_switched_off(config, capsys) -> None:
    """G5: by an option, in both calls."""
    train(config, overrides={"train.steps": 1}, progress=False)
    agl.evaluate(two_agents, TASKS, reward=says_yes, model="bandit", config=config, progress=False)

    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("displays")
def test_a_run_of_the_command_line_is_shown_on_its_stream(config, capsys) -> None:
    """Also with ``progress=False``."""
    seen, stream = [], io.StringIO()

    class Display:
        def started(self, config) -> None: ...

        def step(self, report) -> None:
            seen.append(report.step)

        def evaluation(self, evaluation) -> None: ...

        def finished(self, report) -> None: ...

    with invoked(Invocation(observers=(Display(),), stream=stream)):
        train(config, overrides={"train.steps": 1}, progress=False)

    assert seen == [1]
    assert stream.getvalue().splitlines() == SHOWN
    assert capsys.readouterr().err == ""


def test_what_the_users_code_raises_begins_with_its_own_frames(config) -> None:
    """G8: below the call of agl.train comes the user's line, none of ours."""

    def rows():
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError) as caught:
        agl.train(two_agents, rows, agents=["writer"], model="bandit", config=config)

    names = [entry.name for entry in caught.traceback]
    assert names[-1] == "rows"
    assert names[1:-1] == ["train", "_ended"]


def test_what_our_code_raises_keeps_its_frames(config) -> None:
    with pytest.raises(agl.ConfigError) as caught:
        agl.train(two_agents, [], agents=["writer"], model="bandit", config=config)

    assert caught.traceback[-1].name == "load_tasks"


def test_an_engine_may_look_at_the_model_first(config, tmp_path) -> None:
    """G8: before its factory is called, whose module may import large libraries."""
    (tmp_path / "slow.py").write_text(_SLOW_ENGINE, encoding="utf-8")
    config |= {"plugins": [str(tmp_path / "slow.py")], "engine": {"name": "slow"}}

    with pytest.raises(agl.ConfigError, match="no model 'bandit'"):
        train(config)


def test_agents_can_be_named_for_an_evaluation(config, tmp_path) -> None:
    """G13: as for training."""
    agl.evaluate(
        two_agents, TASKS, agents=["writer"], reward=says_yes, model="bandit", config=config
    )

    stored = json.loads((tmp_path / "run" / "eval" / "config.json").read_text())
    assert stored["agents"] == ["writer"]


def test_what_was_exported_can_be_evaluated(config, tmp_path, monkeypatch) -> None:
    """G13: the path that export returns is a checkpoint, with the run's configuration in it."""
    served: list[str] = []

    class Engine(BanditEngine):
        async def start(self, policies) -> None:
            served.extend(f"{policy.name}={policy.model}" for policy in policies)
            await super().start(policies)

    out = train(config, overrides={"train.steps": 1}).export(str(tmp_path / "out"))
    monkeypatch.setattr("tests.core.bandit_engine.BanditEngine", Engine)

    agl.evaluate(two_agents, TASKS, reward=says_yes, checkpoint=out)

    assert f"trained={tmp_path / 'out' / 'trained'}" in served
    with pytest.raises(agl.ConfigError, match="neither a checkpoint nor an export"):
        agl.evaluate(two_agents, TASKS, config=config, model="bandit", checkpoint=tmp_path)


_SLOW_ENGINE = """
from agl_core import ConfigError, hookimpl
from agl_core.config import EngineOptions

class Options(EngineOptions):
    def check_model(self, model):
        raise ConfigError(f"no model {model!r}")

@hookimpl
def agl_register_engines(register):
    register("slow", "a_module_that_is_not_there:Engine", config=Options)
"""


def test_a_process_without_a_console_shows_no_progress(monkeypatch):
    """G5: pythonw and services have no standard error; the run needs none. Its log is written."""
    monkeypatch.setattr(sys, "stderr", None)

    with facade._watching((), load_plugins(), shown=True) as observers:
        assert [type(each).__name__ for each in observers] == ["RunLog"]

"""``agl eval``: scores of checkpoints and of versions of prompts."""

from __future__ import annotations

import json

import msgspec
import pytest

import agl_core.app
from tests.core.reports import EVALUATION
from tests.plugins.results.conftest import captured
from tests.trainers.prompts.fakes import TEXT
from tests.trainers.prompts.runs import KIND, LONGER


class Apps:
    """Stands in for `App`: scores a task 1 if it is of the `solved` ones of the writer's prompt."""

    def __init__(self):
        self.made = []
        self.asked = []
        self.solved = {None: 4, TEXT: 2, LONGER: 5, KIND: 8}
        apps = self

        class App:
            def __init__(self, config, *, observers=(), plugins=None):
                self.config, self.observers = config, observers
                apps.made.append(self)

            async def evaluate(self, *, checkpoint=None, prompts=None):
                apps.asked.append((checkpoint, prompts))
                solved = apps.solved[prompts["writer"].template if prompts else None]
                tasks = {str(number): float(number < solved) for number in range(8)}
                evaluation = msgspec.structs.replace(EVALUATION, tasks=tasks)
                for observer in self.observers:
                    observer.evaluation(evaluation)
                return evaluation

        self.App = App


@pytest.fixture
def apps(monkeypatch):
    made = Apps()
    monkeypatch.setattr(agl_core.app, "App", made.App)
    return made


@pytest.fixture
def file(tmp_path):
    (tmp_path / "run.toml").write_text("")
    return "run.toml"


def test_eval_scores_a_checkpoint(agl, apps, file, tmp_path):
    (tmp_path / "checkpoint").mkdir()
    result = agl("eval", file, "--checkpoint", "checkpoint", "--json", "e.json", "--set", "seed=4")
    assert result.exit_code == 0, result.output
    assert apps.asked == [("checkpoint", None)]
    assert apps.made[0].config.seed == 4
    assert "0.500 [0.250, 0.750] n=8" in result.stdout
    figures = json.loads((tmp_path / "e.json").read_text(encoding="utf-8"))
    assert figures["score"] == {"mean": 0.5, "low": 0.25, "high": 0.75, "n": 8}
    assert figures["failed"] == {"engine": 1}


def test_eval_loads_the_plugins_of_both_places(agl, apps, file, tmp_path):
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("")
    result = agl("--plugin", "two.py", "eval", file, "--plugin", "one.py")
    assert result.exit_code == 0, result.output
    assert apps.made[0].config.plugins == [str(tmp_path / "two.py"), str(tmp_path / "one.py")]


def test_a_run_is_evaluated_by_its_name_where_its_directory_is_now(agl, apps, run, tmp_path):
    moved = run.directory.rename(tmp_path / "agl_runs" / "market")
    assert agl("eval", "market").exit_code == 0
    assert (apps.made[0].config.directory, apps.made[0].config.name) == (
        str(moved.parent),
        "market",
    )


@pytest.mark.parametrize(
    ("version", "text"), [("1", TEXT), ("2", LONGER), ("before", TEXT), ("best", KIND)]
)
def test_a_version_of_the_prompts_is_evaluated(agl, apps, run, version, text):
    result = agl("eval", "shop", "--prompts", version)
    assert result.exit_code == 0, result.output
    assert apps.asked == [(None, {"writer": captured(text)})]


def test_the_prompts_of_a_checkpoint_are_evaluated(agl, apps, run):
    checkpoint = run.checkpoint(2, writer=captured(LONGER))
    assert agl("eval", "shop", "--prompts", checkpoint, "--json", "-").exit_code == 0
    assert apps.asked == [(None, {"writer": captured(LONGER)})]


def test_two_versions_are_compared_in_pairs(agl, apps, run, tmp_path):
    result = agl("eval", "shop", "--prompts", "before", "--prompts", "3", "--json", "e.json")
    assert result.exit_code == 0, result.output
    assert [prompts["writer"].template for _, prompts in apps.asked] == [TEXT, KIND]
    assert len(apps.made) == 1
    assert result.output.splitlines()[-3:] == [
        "prompts before: 0.500 [0.250, 0.750] n=8",
        "prompts 3: 0.500 [0.250, 0.750] n=8",
        "difference +0.750 [+0.333, +1.000] n=8, p = 0.0312 (two-sided paired randomisation test)",
    ]
    found = json.loads((tmp_path / "e.json").read_text())
    assert [row["prompts"] for row in found["versions"]] == ["before", "3"]
    assert found["versions"][1]["evaluation"]["tasks"] == {str(n): 1.0 for n in range(8)}
    assert found["difference"]["p"] == 2 / 2**6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("eval", "shop", "--prompts", "9"), "no version '9'"),
        (("eval", "shop", *("--prompts", "1") * 3), "at most twice"),
        (("eval", "absent"), "'absent' is not a run"),
        (("eval", "run.toml", "--checkpoint", "absent"), "does not exist"),
        (("eval", "run.toml", "--prompts", "best"), "has tuned no prompts"),
    ],
)
def test_wrong_usage_evaluates_nothing(agl, apps, run, file, arguments, said):
    result = agl(*arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert apps.asked == []


def test_a_prompt_that_the_configuration_lacks_is_named(agl, apps, run):
    result = agl("eval", "shop", "--set", "prompts={}", "--prompts", "best")
    assert result.exit_code == 2
    assert "['writer'], which its configuration does not have" in result.output

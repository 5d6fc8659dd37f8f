"""What `agl demo` refuses before anything starts, and where it writes."""

import json
from pathlib import Path

import pytest
from agl_demo.command import command
from agl_testing.plugin_contract import PluginContract
from click.testing import CliRunner

from agl_core.config import RunConfig
from agl_core.errors import ConfigError
from agl_core.interfaces import Observer
from agl_core.plugins import PluginManager
from agl_core.types import Estimate, Evaluation, Report


class TestPlugin(PluginContract):
    plugin = "agl_demo.plugin"
    frameworks = ("langgraph", "langchain_core", "openai", "torch", "transformers")


def test_the_demo_needs_held_out_tasks() -> None:
    result = CliRunner().invoke(command, ["--set", "tasks.val=null"])
    assert isinstance(result.exception, ConfigError)
    assert "held-out" in str(result.exception)


def test_a_misspelt_setting_is_named() -> None:
    result = CliRunner().invoke(command, ["--set", "train.stepz=3"])
    assert isinstance(result.exception, ConfigError)
    assert "train.steps" in str(result.exception)


def test_figures_on_standard_output_stand_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    score = Estimate(mean=0.5, low=0.25, high=0.75, n=8)
    planner = {"sha256_before": "0" * 64, "sha256_after": "0" * 64}
    report = Report(
        run_id="demo",
        directory=str(tmp_path),
        steps=[],
        evaluations=[Evaluation(step=0, score=score)],
        policies={"planner": planner},
        calls=32,
        wall_s=4.0,
        best=str(tmp_path / "checkpoints" / "step-000001"),
    )

    class FakeApp:
        def __init__(
            self, config: RunConfig, *, observers: tuple[Observer, ...], plugins: PluginManager
        ) -> None:
            self.observers = observers

        async def train(self) -> Report:
            for observer in self.observers:
                observer.finished(report)
            return report

    monkeypatch.setattr("agl_demo.command.App", FakeApp)
    monkeypatch.setattr(
        "agl_demo.command.evaluate_afresh", lambda *_: Evaluation(step=1, score=score)
    )
    monkeypatch.setattr("agl_demo.command.transcripts", lambda *_: ["before: no", "after: yes"])
    result = CliRunner().invoke(command, ["--json", "-"])
    assert result.exit_code == 0, result.exception
    figures = json.loads(result.stdout)
    assert figures["agents"]["writer"]["after"]["n"] == 8
    assert figures["model"] == "tiny"
    assert "planner weights unchanged" in result.stderr

"""Runs in phases: algorithms in turn, prompts by a toy tuner, interruptions in each phase."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

import agl_core as agl
from agl_core.app import export_weights
from agl_core.config import prompt_phases
from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup, Engine, Tuned
from agl_core.plugins import hookimpl
from agl_core.training import RolloutPlan, TuningSetup
from agl_core.training.checkpoint import read_state
from agl_core.types import Estimate, PromptTemplate, Report, Rollout
from tests.core.app.conftest import Bench, speak
from tests.core.bandit_engine import FIRST_ID, WORDS, BanditEngine

PROMPTS = {
    "greeting": "Hello",
    "manner": {"agents": ["planner"], "text": "rudely"},
    "style": {"agents": ["writer"], "captured": True},
}
VAL = [{"input": n} for n in range(3)]
GRPO = {"algorithm": "reinforce", "steps": 2}
TUNES = {"optimizer": "toy", "rollouts": 4, "prompts": ["manner"]}


class StoppedError(Exception):
    """Ends a run as a crash does."""


class ToyTuner:
    """Appends ``, please`` to the prompts of a phase, after four rollouts with that text."""

    made: ClassVar[list[ToyTuner]] = []
    fails_in: ClassVar[int | None] = None
    """Number of the phase whose rollouts end before the run is interrupted."""

    def __init__(self, setup: TuningSetup) -> None:
        self.setup = setup
        self.tuned: list[int] = []
        ToyTuner.made.append(self)

    async def prompts(self) -> dict[str, PromptTemplate]:
        return {
            name: PromptTemplate(
                template=prompt.text or "learned",
                agents=tuple(prompt.agents),
                known="learned" if prompt.captured else None,
            )
            for name, prompt in self.setup.config.prompts.items()
        }

    async def tune(self, number: int, prompts: Any) -> Tuned:
        self.tuned.append(number)
        phase = prompt_phases(self.setup.config)[number]
        names = phase.prompts or [name for name, prompt in prompts.items() if prompt.agents]
        texts = {name: f"{prompts[name].template}, please" for name in names}
        resources = await self.setup.publish(
            {**prompts, **{name: PromptTemplate(template=texts[name]) for name in names}}
        )
        plan = RolloutPlan(
            tasks=self.setup.train[:2],
            samples=2,
            mode="val",
            step=0,
            resources_version=resources.version,
        )
        records = await self.setup.source.run(plan)
        if ToyTuner.fails_in == number:
            raise StoppedError
        self.setup.losses.add("prompts_refused_same")
        return Tuned(
            texts=texts,
            before=Estimate(mean=number / 10, low=0, high=1, n=2),
            after=Estimate(mean=(number + 1) / 10, low=0, high=1, n=2),
            rollouts=len(records),
            candidates=2,
            calls={"editor": 2, "critic": 1},
        )


class ToyOptions(BaseModel):
    size: int = 1


@hookimpl
def agl_register_tuners(register: Any) -> None:
    register("prompts", f"{__name__}:ToyTuner")


@hookimpl
def agl_register_optimizers(register: Any) -> None:
    register("toy", f"{__name__}:ToyTuner", config=f"{__name__}:ToyOptions")


TOY = SimpleNamespace(
    agl_register_tuners=agl_register_tuners, agl_register_optimizers=agl_register_optimizers
)


async def reads(task: agl.Task) -> str:
    """The planner speaks as its prompt says; the trained writer answers."""
    manner = agl.resource("manner")
    assert isinstance(manner, PromptTemplate)
    await speak("planner", f"plan {task.id} {manner.template}")
    return await speak("writer", f"write {task.id}")


@pytest.fixture
def tuning(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench with the toy tuner in place of the installed one."""
    return as_tuning(bench, monkeypatch)


def as_tuning(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "tuning")
    monkeypatch.setattr(ToyTuner, "made", [])
    monkeypatch.setattr(ToyTuner, "fails_in", None)
    bench.plugins.append(TOY)
    return bench


def spoken(bench: Bench) -> list[str]:
    """What the frozen planner was asked, in order."""
    requests = bench.engine.backends["frozen"].requests
    return [each["messages"][-1]["content"] for each in requests]


def train(bench: Bench, phases: list[dict[str, Any]], **settings: Any) -> Report:
    bench.sections = {
        "prompts": PROMPTS,
        "phases": phases,
        "train": {"tasks_per_step": 2},
        "store": {"name": "sqlite"},
    }
    return bench.train({"agent": reads, "val_tasks": VAL}, **settings)


class TestAlgorithms:
    def test_phases_of_equal_settings_are_one_run(self, tmp_path: Path) -> None:
        whole = Bench(tmp_path / "whole").train(train__steps=4)
        bench = Bench(tmp_path / "phases")
        bench.sections = {
            "phases": [GRPO, {**GRPO, "steps": 2}],
            "train": {"tasks_per_step": 2},
        }
        parts = bench.train()
        assert [step.step for step in parts.steps] == [1, 2, 3, 4]
        assert {step.steps for step in parts.steps} == {4}
        assert [step.reward for step in parts.steps] == [step.reward for step in whole.steps]
        end = "sha256_after"
        assert parts.policies["trained"][end] == whole.policies["trained"][end]
        assert bench.engine.setups == []

    def test_each_phase_has_its_own_settings(self, bench: Bench) -> None:
        bench.sections = {
            "phases": [
                {**GRPO, "lr": 0},
                {"algorithm": "grpo", "steps": 1, "group_size": 2, "kl_weight": 0.1},
            ],
            "train": {"tasks_per_step": 2},
        }
        report = bench.train()
        assert [(setup.name, setup.lr) for setup in bench.engine.setups] == [
            ("reinforce", 0),
            ("grpo", 1.0),
        ]
        assert [step.rollouts for step in report.steps] == [8, 8, 4]
        assert [len(batch.targets) for batch in bench.engine.batches] == [8, 8, 4]

    def test_the_engine_is_made_with_the_greatest_divergence_of_the_phases(
        self, bench: Bench
    ) -> None:
        made: list[AlgorithmSetup | None] = []

        class Noting(BanditEngine):
            def __init__(self, setup: AlgorithmSetup | None = None, **options: Any) -> None:
                super().__init__(setup, **options)
                made.append(setup)

        bench.engine_class = Noting
        bench.sections = {"phases": [GRPO, {**GRPO, "kl_weight": 0.5}], "train": {}}
        bench.train()
        (setup,) = made
        assert setup is not None
        assert (setup.kl_weight, setup.lr) == (0.5, 1.0)

    def test_an_engine_that_cannot_change_refuses_before_anything_starts(
        self, bench: Bench
    ) -> None:
        class Fixed(BanditEngine):
            configure = Engine.configure

        bench.engine_class = Fixed
        bench.sections = {"phases": [GRPO, {**GRPO, "lr": 0.5}], "train": {}}
        with pytest.raises(ConfigError, match="Fixed trains with one setting"):
            bench.train()
        assert bench.engine.backends == {}
        bench.sections = {"phases": [GRPO, {**GRPO, "group_size": 2}], "train": {}}
        assert len(bench.train().steps) == 4

    def test_a_phase_that_the_engine_cannot_train_is_refused_before_anything_starts(
        self, bench: Bench
    ) -> None:
        class Choosy(BanditEngine):
            def check_setup(self, setup: AlgorithmSetup) -> None:
                if setup.lr > 0.4:
                    raise ConfigError(f"lr is {setup.lr}")

        bench.engine_class = Choosy
        bench.sections = {"phases": [{**GRPO, "lr": 0.3}, {**GRPO, "lr": 0.5}], "train": {}}
        with pytest.raises(ConfigError, match=r"lr is 0\.5"):
            bench.train()
        assert bench.engine.backends == {}
        bench.sections["phases"][1]["lr"] = 0.4
        assert len(bench.train().steps) == 4

    def test_no_rollout_is_begun_beyond_a_phase(self, bench: Bench) -> None:
        versions: dict[int, int] = {}

        @hookimpl
        def agl_rollout_started(rollout: Rollout) -> None:
            versions[rollout.step] = rollout.resources_version

        bench.plugins.append(SimpleNamespace(agl_rollout_started=agl_rollout_started))
        bench.sections = {
            "phases": [{**GRPO, "steps": 3}, {**GRPO, "steps": 2}],
            "train": {"tasks_per_step": 2, "max_staleness": 2},
        }
        bench.train()
        assert versions == {0: 1, 1: 1, 2: 1, 3: 4, 4: 4}

    def test_a_warm_start_needs_no_agent_for_its_steps(self, bench: Bench, tmp_path: Path) -> None:
        class Renders(BanditEngine):
            @staticmethod
            def renderer(model: str) -> Any:
                return rendered

        data = tmp_path / "data.jsonl"
        lines = [{"role": "user", "content": "write"}, {"role": "assistant", "content": "yes"}]
        data.write_text(json.dumps({"messages": lines}) + "\n", encoding="utf-8")
        bench.engine_class = Renders
        warm = {"algorithm": "sft", "steps": 3, "lr": 20.0, "data": [str(data)]}
        bench.sections = {"phases": [warm, {**GRPO, "steps": 1}], "train": {"tasks_per_step": 2}}
        report = bench.train()
        assert [step.rollouts for step in report.steps] == [0, 0, 0, 8]
        assert report.steps[3].reward == 1.0
        bench.sections = {"phases": [warm], "train": {}, "name": "warm"}
        assert len(bench.train({"agent": None, "tasks": None}).steps) == 3

    @pytest.mark.parametrize(
        ("phases", "message"),
        [
            ([{**GRPO, "algorithm": "gpro"}], "Unknown algorithm 'gpro'; did you mean 'grpo'"),
            ([{**GRPO, "lr": -1}], r"phases\.0\.lr = -1"),
            ([GRPO, {**GRPO, "baselin": "mean"}], r"phases\.1\.baselin"),
            ([{**TUNES, "optimizer": "toys"}], "Unknown optimizer 'toys'; did you mean 'toy'"),
            ([{**TUNES, "sise": 2}], r"phases\.0\.sise.*did you mean 'phases\.0\.size'"),
            ([{**TUNES, "size": "x"}], r"phases\.0\.size = 'x'"),
        ],
    )
    def test_names_and_options_are_checked_before_anything_starts(
        self, tuning: Bench, phases: Any, message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            train(tuning, phases)
        assert tuning.engines == []

    def test_options_of_the_algorithm_go_to_phases_with_it(self, bench: Bench) -> None:
        bench.sections = {
            "algorithm": {"name": "reinforce", "lr": 0.5, "baseline": "mean"},
            "phases": [GRPO, {"algorithm": "grpo", "steps": 1}],
            "train": {},
        }
        assert [step.steps for step in bench.train().steps] == [3, 3, 3]
        assert bench.engine.lr == 0.5
        bench.sections["phases"] = [{"algorithm": "grpo", "steps": 1}]
        with pytest.raises(ConfigError, match=r"algorithm.baseline is an option of 'reinforce'"):
            bench.app()

    def test_options_of_a_phase_override_those_of_the_optimizer(self, tuning: Bench) -> None:
        tuning.sections = {"optimizers": {"toy": {"size": "x"}}}
        assert tuning.app(train__steps=1)
        tuning.sections |= {"prompts": PROMPTS, "phases": [TUNES], "train": {}}
        with pytest.raises(ConfigError, match=r"size = 'x'"):
            tuning.app()
        tuning.sections["phases"] = [{**TUNES, "size": 3}]
        assert tuning.app()
        tuning.sections["optimizers"] = {"toy": {"rollouts": 3}}
        with pytest.raises(ConfigError, match=r"optimizers.toy.rollouts is no option"):
            tuning.app()
        tuning.sections["optimizers"] = {"toi": {}}
        with pytest.raises(ConfigError, match="did you mean 'toy'"):
            tuning.app()


def rendered(messages: Any, tools: Any) -> list[int]:
    """The bandit's tokens of a conversation."""
    ids: list[int] = []
    for message in messages:
        said, text = message["role"] == "assistant", message["content"]
        ids += [FIRST_ID + WORDS.index(text)] if said else list(text.encode())
    return ids


class TestPrompts:
    def test_a_tuned_text_is_served_evaluated_and_kept(self, tuning: Bench) -> None:
        report = train(tuning, [GRPO, TUNES, GRPO])
        assert ToyTuner.made[0].tuned == [1]
        last = [text for text in spoken(tuning) if text.startswith("plan")]
        assert last[0].endswith("rudely")
        assert last[-1].endswith("rudely, please")
        assert [(each.step, each.phase) for each in report.evaluations] == [
            (0, None),
            (2, None),
            (2, 1),
            (4, None),
        ]
        manner = report.prompts["manner"]
        assert (manner.text, manner.agents) == ("rudely, please", ["planner"])
        assert manner.before is not None
        assert manner.after is not None
        assert (manner.before.mean, manner.after.mean) == (0.1, 0.2)
        style = report.prompts["style"]
        assert (style.text, style.captured, style.after) == ("learned", True, None)
        assert (report.rollouts, report.editor_calls) == (8 * 4 + 4, 3)
        assert report.lost["prompts_refused_same"] == 1
        assert "prompt manner 0.100 [0.000, 1.000] n=2 -> 0.200" in report.summary()
        stored = json.loads((Path(report.directory) / "report.json").read_text())
        assert stored["prompts"]["manner"]["after"]["n"] == 2

    def test_checkpoints_hold_the_prompts_that_were_served(self, tuning: Bench) -> None:
        report = train(tuning, [GRPO, TUNES], train__keep_checkpoints=9)
        found = {
            path.name: read_state(path).prompts["manner"].template
            for path in sorted((Path(report.directory) / "checkpoints").iterdir())
        }
        assert found == {
            "step-000000": "rudely",
            "step-000001": "rudely",
            "step-000002": "rudely",
            "step-000002-phase-01": "rudely, please",
        }

    def test_the_best_pair_of_weights_and_prompts_is_the_best(self, tuning: Bench) -> None:
        """Prompts make or break it: after the second prompt phase everything fails."""

        def reward(task: agl.Task, output: Any, attempt: agl.AttemptRecord) -> float:
            texts = [span.call.messages[-1]["content"] for span in attempt.spans if span.call]
            return float(texts[0].count("please") == 1)

        tuning.sections = {
            "prompts": PROMPTS,
            "phases": [GRPO, TUNES, TUNES],
            "train": {"tasks_per_step": 2},
        }
        report = tuning.train({"agent": reads, "reward": reward, "val_tasks": VAL})
        assert [each.score.mean for each in report.evaluations] == [0, 0, 1, 0]
        assert report.best is not None
        assert Path(report.best).name == "step-000002-phase-01"
        best = tuning.app({"agent": reads, "reward": reward, "val_tasks": VAL})
        assert asyncio.run(best.evaluate(checkpoint=report.best)).score.mean == 1

    def test_a_tuner_that_is_missing_is_named(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AGL_DISABLE_PLUGINS", "tuning")
        bench.sections = {"prompts": PROMPTS}
        with pytest.raises(ConfigError, match="Unknown tuner 'prompts'"):
            bench.app()

    def test_a_phase_that_ended_early_says_why(
        self, tuning: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def tune(self: Any, number: int, prompts: Any) -> Tuned:
            return Tuned(texts={}, reason="the editor failed 3 times")

        monkeypatch.setattr(ToyTuner, "tune", tune)
        report = train(tuning, [TUNES])
        assert "Phase 0 (toy) ended early: the editor failed 3 times" in caplog.text
        assert report.prompts["manner"].text == "rudely"


class TestPromptsAlone:
    @pytest.fixture
    def serving(self, tuning: Bench) -> Bench:
        """A run without trained agents, on an engine that only serves."""

        class Serves(BanditEngine):
            trains = False

            def __init__(self, setup: AlgorithmSetup | None = None, **options: Any) -> None:
                assert setup is None
                super().__init__(**options)

            async def fingerprint(self, policy: str) -> str:
                raise self.only_serves("read the weights")

            async def save(self, policy: str, directory: str, *, resumable: bool = True) -> None:
                raise self.only_serves("save")

        tuning.engine_class = Serves
        tuning.engine_options = {"token_ids": False}
        return tuning

    @pytest.mark.parametrize("agents", [[], ["writer"]])
    def test_it_needs_no_policy_that_is_trained(self, serving: Bench, agents: list[str]) -> None:
        report = train(serving, [TUNES, TUNES], agents=json.dumps(agents))
        assert list(report.policies) == ["frozen"]
        assert [(each.step, each.phase) for each in report.evaluations] == [
            (0, None),
            (0, 0),
            (0, 1),
        ]
        versions = [each.resources_version for each in report.evaluations]
        assert versions == sorted({*versions})
        assert versions[0] > 0
        assert report.best is not None
        checkpoint = Path(report.best)
        assert not (checkpoint / "policies").exists()
        summary = report.summary()
        assert "weights" not in summary
        assert "run bench: 8 rollouts, 6 editor calls" in summary
        assert f"prompts {report.best}" in summary

    def test_its_checkpoint_is_evaluated_with_its_prompts(self, serving: Bench) -> None:
        report = train(serving, [TUNES])
        last = max((Path(report.directory) / "checkpoints").iterdir())
        app = serving.app({"agent": reads, "val_tasks": VAL})
        asyncio.run(app.evaluate(checkpoint=last))
        assert all(text.endswith(", please") for text in spoken(serving) if "plan" in text)
        with pytest.raises(ConfigError, match="holds no weights"):
            export_weights(last, serving.directory / "out")


PHASES = [TUNES, GRPO, {**TUNES, "prompts": ["style", "manner"]}, GRPO, TUNES]


class Stops:
    """An observer that interrupts a run before or after its nth step or evaluation."""

    def __init__(self, *, at: int) -> None:
        self.left = at

    def started(self, config: Any) -> None: ...

    def finished(self, report: Report) -> None: ...

    def _seen(self, what: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise StoppedError

    step = evaluation = _seen


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Report]:
    """The report of a run that nothing interrupts."""
    with pytest.MonkeyPatch.context() as patch:
        yield train(as_tuning(Bench(tmp_path_factory.mktemp("whole")), patch), PHASES)


class TestResumed:
    """StoppedError anywhere, the run ends as if it had not been."""

    def _check(self, resumed: Report, whole: Report) -> None:
        assert resumed.prompts == whole.prompts
        assert resumed.policies["trained"]["version"] == whole.policies["trained"]["version"]
        end = "sha256_after"
        assert resumed.policies["trained"][end] == whole.policies["trained"][end]
        assert [step.reward for step in resumed.steps] == [step.reward for step in whole.steps]
        scores = [(each.step, each.phase, each.score) for each in resumed.evaluations]
        assert scores == [(each.step, each.phase, each.score) for each in whole.evaluations]
        assert (resumed.rollouts, resumed.editor_calls) == (whole.rollouts, whole.editor_calls)
        assert resumed.lost["prompts_refused_same"] == whole.lost["prompts_refused_same"] == 3
        assert Path(resumed.best or "").name == Path(whole.best or "").name

    @pytest.mark.parametrize("phase", [0, 2, 4])
    def test_in_a_prompt_phase(self, whole: Report, tuning: Bench, phase: int) -> None:
        ToyTuner.made.clear()
        ToyTuner.fails_in = phase
        with pytest.raises(StoppedError):
            train(tuning, PHASES)
        ToyTuner.fails_in = None
        resumed = train(tuning, PHASES, train__resume=True)
        assert ToyTuner.made[-1].tuned == [each for each in (0, 2, 4) if each >= phase]
        self._check(resumed, whole)
        assert resumed.lost["rollouts_abandoned"] == 4

    @pytest.mark.parametrize("at", range(1, 11))
    def test_at_each_step_and_evaluation(self, whole: Report, tuning: Bench, at: int) -> None:
        tuning.sections = {
            "prompts": PROMPTS,
            "phases": PHASES,
            "train": {"tasks_per_step": 2},
            "store": {"name": "sqlite"},
        }
        app = tuning.app({"agent": reads, "val_tasks": VAL}, observers=[Stops(at=at)])
        with pytest.raises(StoppedError):
            asyncio.run(app.train())
        self._check(train(tuning, PHASES, train__resume=True), whole)

    def test_other_phases_are_another_run(self, tuning: Bench) -> None:
        train(tuning, [TUNES])
        with pytest.raises(ConfigError, match="other settings"):
            train(tuning, [TUNES, TUNES], train__resume=True)

    def test_a_longer_run_without_phases_continues(self, bench: Bench) -> None:
        bench.train(train__steps=1)
        assert len(bench.train(train__steps=2, train__resume=True).steps) == 2

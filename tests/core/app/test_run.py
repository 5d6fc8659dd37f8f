"""Whole runs: real HTTP, gateway, store, runner and loop around a hand-sized engine."""

import asyncio
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agl_rewards._exact_match import ExactMatch

import agl_core as agl
from agl_core.errors import (
    CaptureError,
    ConfigError,
    MissingTokensError,
    PluginError,
    RewardError,
    TrainingError,
)
from agl_core.types import Attempt, Limits
from tests.core.app.conftest import Bench, ask, says_yes, speak, two_agents
from tests.core.bandit_engine import FIRST_ID


def test_the_named_agent_learns_and_the_other_stays(bench: Bench) -> None:
    report = bench.train(train__steps=12)
    curve = [step.reward for step in report.steps]
    assert sum(curve[-3:]) / 3 > sum(curve[:3]) / 3 + 0.3
    trained, frozen = report.policies["trained"], report.policies["frozen"]
    assert trained["sha256_before"] != trained["sha256_after"]
    assert trained["version"] == 12
    assert frozen["sha256_before"] == frozen["sha256_after"]
    assert frozen["version"] == 0
    assert report.calls == 12 * 8 * 2


def test_batches_hold_the_trained_agents_calls_only(bench: Bench) -> None:
    bench.train(train__steps=1)
    (batch,) = bench.engine.batches
    assert batch.policy == "trained"
    assert len(batch.targets) == 8
    assert all(FIRST_ID <= target < FIRST_ID + 3 for target in batch.targets)
    prompts = bytes(list(batch.tokens)).decode()
    assert "write" in prompts
    assert "plan" not in prompts


def test_breaks_of_conversations_are_counted_in_steps_and_report(bench: Bench) -> None:
    async def edits(task: agl.Task) -> str:
        first = {"role": "user", "content": f"write {task.id}"}
        with agl.agent_scope("writer"):
            answer = await ask([first])
            edited = {**first, "content": "wrote"}
            said = {"role": "assistant", "content": answer["content"]}
            return (await ask([edited, said, first]))["content"]

    report = bench.train({"agent": edits})
    assert [step.breaks for step in report.steps] == [{"writer": {"edited": 8}}] * 2
    assert report.breaks == {"writer": {"edited": 16}}


def test_learning_rate_zero_changes_nothing(bench: Bench) -> None:
    report = bench.train(algorithm__lr=0)
    trained = report.policies["trained"]
    assert trained["sha256_before"] == trained["sha256_after"]


def test_a_resumed_run_ends_bit_equal(tmp_path: Path) -> None:
    whole = Bench(tmp_path / "whole").train(train__steps=6)
    parts = Bench(tmp_path / "parts")
    parts.train(train__steps=3)
    resumed = parts.train(train__steps=6, train__resume=True)
    assert [step.reward for step in resumed.steps] == [step.reward for step in whole.steps]
    end = "sha256_after"
    assert resumed.policies["trained"][end] == whole.policies["trained"][end]
    before = "sha256_before"
    assert resumed.policies["trained"][before] == whole.policies["trained"][before]


def test_a_run_that_has_checkpoints_is_not_overwritten(bench: Bench) -> None:
    bench.train()
    with pytest.raises(ConfigError, match=r"train\.resume = true"):
        bench.train()


def test_other_settings_cannot_resume(bench: Bench) -> None:
    bench.train()
    with pytest.raises(ConfigError, match="other settings"):
        bench.train(train__steps=4, train__resume=True, algorithm__lr=2.0)


def test_the_resolved_config_and_the_report_are_stored(bench: Bench) -> None:
    report = bench.train(algorithm__lr=0.5)
    stored = json.loads((Path(report.directory) / "config.json").read_text())
    assert stored["algorithm"]["lr"] == 0.5
    assert stored["rollout"]["lease_s"] == 30.0
    assert json.loads((Path(report.directory) / "report.json").read_text())["calls"] == 32


def test_validation_chooses_the_best_checkpoint_and_exports_it(bench: Bench) -> None:
    report = bench.train(
        {"val_tasks": [{"input": n} for n in range(6)]}, train__steps=6, train__eval_every=2
    )
    assert [evaluation.step for evaluation in report.evaluations] == [0, 2, 4, 6]
    best = max(report.evaluations[1:], key=lambda evaluation: evaluation.score.mean)
    assert report.best is not None
    assert report.best.endswith(f"step-{best.step:06d}")
    (Path(report.best) / "policies" / "trained" / "training_state.pt").write_bytes(b"momentum")
    exported = Path(report.export(str(bench.directory / "out")))
    assert not list(exported.rglob("training_state*"))
    assert (exported / "trained" / "logits.json").is_file()


async def test_a_checkpoint_is_evaluated_with_its_own_weights(bench: Bench) -> None:
    inputs = {"val_tasks": [{"input": n} for n in range(40)]}
    before = await bench.app(inputs).evaluate()
    report = await bench.app(train__steps=15).train()
    after = await bench.app(inputs).evaluate(checkpoint=report.best)
    assert before.score.high < after.score.low
    assert (before.score.n, after.step) == (40, 15)


@pytest.mark.parametrize("plain", [False, True], ids=["async", "threads"])
def test_every_reward_stays_with_its_own_attempt(bench: Bench, plain: bool) -> None:
    """Fifty attempts at once; the text of every call says whose it is."""

    async def agent(task: agl.Task) -> str:
        await speak("writer", f"I am {task.id}")
        return task.id

    def plain_agent(task: agl.Task) -> str:
        return asyncio.run(agent(task))

    def reward(task: agl.Task, output: Any, attempt: agl.AttemptRecord) -> float:
        texts = [span.call.messages[0]["content"] for span in attempt.spans if span.call]
        assert output == task.id
        assert all(text == f"I am {task.id}" for text in texts)
        return float(task.input)

    bench.train(
        {
            "agent": plain_agent if plain else agent,
            "reward": reward,
            "tasks": [{"input": n} for n in range(25)],
        },
        train__steps=1,
        train__tasks_per_step=25,
        algorithm__group_size=2,
        rollout__concurrency=50,
    )
    (batch,) = bench.engine.batches
    assert len(set(batch.call_ids)) == 50
    by_node = dict(zip(batch.nodes, batch.advantages, strict=True))
    assert sorted(set(by_node.values())) == [float(n) for n in range(25)]


class TestBadInput:
    def test_an_unknown_agent_lists_those_seen(self, bench: Bench) -> None:
        with pytest.raises(ConfigError, match=r"writr.*writer"):
            bench.train(agents='["writr"]')

    def test_no_reward_arrived(self, bench: Bench) -> None:
        with pytest.raises(RewardError, match="emit_reward"):
            bench.train({"reward": None, "agent": two_agents})

    def test_a_reward_that_is_not_finite(self, bench: Bench) -> None:
        with pytest.raises((RewardError, TrainingError), match="nan"):
            bench.train({"reward": lambda task, output, attempt: float("nan")})

    def test_a_reward_for_an_unknown_call(self, bench: Bench) -> None:
        async def agent(task: agl.Task) -> str:
            agl.emit_reward(1.0, call="nobody")
            return await two_agents(task)

        with pytest.raises(RewardError, match="nobody"):
            bench.train({"agent": agent})

    def test_a_backend_without_token_ids_stops_before_the_first_step(self, bench: Bench) -> None:
        bench.engine_options = {"token_ids": False}
        with pytest.raises(MissingTokensError, match="token"):
            bench.train()
        assert bench.engine.batches == []

    def test_an_agent_that_raises_everywhere(self, bench: Bench) -> None:
        def agent(task: agl.Task) -> str:
            raise ValueError(f"no {task.id}")

        with pytest.raises(TrainingError, match="ValueError"):
            bench.train({"agent": agent})

    def test_an_agent_that_sometimes_raises_is_counted(self, bench: Bench) -> None:
        async def agent(task: agl.Task) -> str:
            answer = await two_agents(task)
            if answer == "no":
                raise ValueError("no means no")
            return answer

        report = bench.train({"agent": agent})
        failed = sum(step.failures.get("agent", 0) for step in report.steps)
        assert failed > 0
        assert report.lost["attempts_dropped_agent"] == failed

    def test_an_agent_that_exits_or_hangs_does_not_stop_the_run(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hung: list[str] = []

        def deadline(attempt: Attempt, limits: Limits) -> float:
            """The first attempt has no time, the others have plenty."""
            hung[:] = hung or [attempt.id]
            return time.monotonic() + (0 if attempt.id in hung else limits.timeout_s)

        async def agent(task: agl.Task) -> str:
            if agl.current().attempt.id in hung:
                await asyncio.Event().wait()
            answer = await two_agents(task)
            if answer != "yes":
                sys.exit(3)
            return answer

        monkeypatch.setattr(Attempt, "monotonic_deadline", deadline)
        (step,) = bench.train({"agent": agent}, train__steps=1).steps
        assert step.failures["deadline"] == 1
        assert step.failures["agent"] > 0
        assert step.reward == 1.0

    def test_a_penalty_is_a_return_and_never_a_silent_zero(self, bench: Bench) -> None:
        async def agent(task: agl.Task) -> str:
            answer = await two_agents(task)
            if answer != "yes":
                raise ValueError(answer)
            return answer

        bench.train(
            {"agent": agent},
            rollout__failures__agent="penalize",
            rollout__penalty=-2.0,
            train__steps=1,
        )
        (batch,) = bench.engine.batches
        assert set(batch.advantages) == {1.0, -2.0}

    def test_calls_without_an_agent_are_not_guessed(self, bench: Bench) -> None:
        async def agent(task: agl.Task) -> str:
            import httpx

            llm = agl.current().llm
            async with httpx.AsyncClient(verify=False, timeout=600) as client:
                answer = await client.post(
                    f"{llm.base_url}/chat/completions",
                    headers={"authorization": f"Bearer {llm.api_key}"},
                    json={"model": "trained", "messages": [{"role": "user", "content": "x"}]},
                )
            return answer.json()["choices"][0]["message"]["content"]

        with pytest.raises((CaptureError, ConfigError)):
            bench.train({"agent": agent})

    def test_a_plugin_that_raises_in_a_hook_stops_the_run(self, bench: Bench) -> None:
        from agl_core.plugins import hookimpl
        from agl_core.plugins._manager import Source

        @hookimpl
        def agl_batch_built(batch: Any, step: int) -> None:
            raise ValueError("bad plugin")

        app = bench.app()
        app._plugins.register(SimpleNamespace(agl_batch_built=agl_batch_built), Source(name="bad"))
        import asyncio

        with pytest.raises(PluginError, match="'bad'"):
            asyncio.run(app.train())

    def test_nothing_to_train_is_refused(self, bench: Bench) -> None:
        with pytest.raises(ConfigError, match="Nothing would be trained"):
            bench.train(agents="[]")

    def test_an_unknown_algorithm_names_the_nearest(self, bench: Bench) -> None:
        with pytest.raises(ConfigError, match="grpo"):
            bench.train(algorithm__name="grppo")

    def test_there_is_no_agent(self, bench: Bench) -> None:
        with pytest.raises(ConfigError, match="no agent to run"):
            bench.train({"agent": None})


def test_prompts_reach_the_agent(bench: Bench) -> None:
    seen: list[str] = []

    async def agent(task: agl.Task) -> str:
        seen.append(agl.resource("greeting").format(name="Ann"))
        return await two_agents(task)

    bench.train(
        {"agent": agent, "reward": says_yes}, train__steps=1, prompts__greeting="Hi {name}!"
    )
    assert set(seen) == {"Hi Ann!"}


def test_channels_are_weighted_and_reported_apart(bench: Bench) -> None:
    report = bench.train(
        {
            "reward": {
                "good": lambda task, output, attempt: 1.0,
                "bad": lambda task, output, attempt: 2.0,
            }
        },
        channel_weights__bad=-0.25,
        train__steps=1,
    )
    (step,) = report.steps
    assert step.channels == {"good": 1.0, "bad": 2.0}
    assert step.reward == 0.5


class TestLateRewards:
    """A reward that comes after the attempt has ended, from a thread the agent left behind."""

    def _run(self, bench: Bench, grace_s: float, steps: int) -> agl.Report:
        import contextvars
        import threading

        from tests.core.bandit_engine import WORDS

        self.threads: list[threading.Thread] = []

        async def agent(task: agl.Task) -> str:
            answer = await two_agents(task)
            agl.emit_reward(0.0)
            ended = agl.current().recorder

            def judge() -> None:
                while not ended.closed:
                    threading.Event().wait(0.01)
                agl.emit_reward(float(WORDS.index(answer)))

            context = contextvars.copy_context()
            self.threads.append(threading.Thread(target=context.run, args=(judge,)))
            self.threads[-1].start()
            return answer

        report = bench.train(
            {"agent": agent, "reward": None}, capture__reward_grace_s=grace_s, train__steps=steps
        )
        for thread in self.threads:
            thread.join()
        return report

    def test_within_the_grace_it_counts(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def sleep(seconds: float) -> None:
            """As long as the grace, which lasts until every reward is there."""
            assert 0 < seconds <= 600
            await asyncio.to_thread(lambda: [thread.join() for thread in self.threads])
            told = [task for task in asyncio.all_tasks() if "_deliver" in repr(task)]
            await asyncio.gather(*told)

        own = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
        monkeypatch.setattr("agl_core.training.rollouts.asyncio", own)
        report = self._run(bench, 600.0, steps=1)
        (batch,) = bench.engine.batches
        for target, advantage in zip(batch.targets, batch.advantages, strict=True):
            assert advantage == float(target - FIRST_ID)
        assert "late_reward" not in report.lost

    def test_without_grace_it_is_lost_and_counted(self, bench: Bench) -> None:
        report = self._run(bench, 0.0, steps=3)
        assert all(set(batch.advantages) == {0.0} for batch in bench.engine.batches)
        assert report.lost["late_reward"] > 0


async def test_a_failed_attempt_does_not_outdo_negative_scores(bench: Bench) -> None:
    async def agent(task: agl.Task) -> str:
        answer = await two_agents(task)
        if task.input == 0:
            raise ValueError("failed")
        return answer

    inputs = {
        "agent": agent,
        "reward": lambda task, output, attempt: -3.0,
        "val_tasks": [{"input": 0}, {"input": 1}],
    }
    evaluation = await bench.app(inputs, rollout__penalty=-10.0).evaluate()
    assert evaluation.score.mean == -6.5
    assert evaluation.failed == {"agent": 1}


class _Crash:
    """An observer that ends the run when a step is reported, before its checkpoint."""

    def __init__(self, step: int) -> None:
        self._step = step

    def started(self, config: Any) -> None: ...

    def evaluation(self, evaluation: Any) -> None: ...

    def finished(self, report: Any) -> None: ...

    def step(self, report: Any) -> None:
        if report.step == self._step:
            raise RuntimeError


class _Stages(_Crash):
    """Keeps what a run is said to do, and when."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.seen: list[str] = []

    def started(self, config: Any) -> None:
        self.seen.append("started")

    def stage(self, doing: str) -> None:
        self.seen.append(doing)

    def step(self, report: Any) -> None:
        self.seen.append("step")

    def evaluation(self, evaluation: Any) -> None:
        self.seen.append("evaluation")


def test_a_run_says_what_it_does_before_its_first_step(bench: Bench) -> None:
    """G9: loading weights, the gateway, evaluating, running the agents."""
    stages = _Stages()
    inputs = {"val_tasks": [{"input": 0}, {"input": 1}]}
    asyncio.run(bench.app(inputs, [stages, _Crash(-1)], train__steps=2).train())
    assert stages.seen == [
        "loading weights",
        "starting the gateway",
        "started",
        "evaluating on 2 tasks",
        "evaluation",
        "running the agents for step 1",
        "step",
        "step",
        "evaluating on 2 tasks",
        "evaluation",
    ]
    stages.seen.clear()
    asyncio.run(bench.app(inputs, [stages]).evaluate())
    assert stages.seen == [
        "loading weights",
        "starting the gateway",
        "evaluating on 2 tasks",
        "evaluation",
    ]


def test_rollouts_of_steps_that_a_crash_undid_are_counted_each_once(bench: Bench) -> None:
    settings = {"store__name": "sqlite", "train__steps": 4, "train__resume": True}
    for crash in (2, 2, 3):
        with pytest.raises(RuntimeError):
            asyncio.run(bench.app(observers=[_Crash(crash)], **settings).train())
    report = bench.train(**settings)
    assert [step.step for step in report.steps] == [1, 2, 3, 4]
    assert report.lost["rollouts_abandoned"] == 3 * 8


async def test_an_evaluation_makes_the_rewards_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may load a model."""
    made = []

    class Counted(ExactMatch):
        def __init__(self, **options: Any) -> None:
            made.append(self)
            super().__init__(**options)

    monkeypatch.setattr("agl_rewards._exact_match.ExactMatch", Counted)
    inputs = {"reward": None, "tasks": [{"input": 0, "expected": "yes"}]}
    await bench.app(inputs, rewards='[{"name": "exact_match"}]').evaluate()
    assert len(made) == 1

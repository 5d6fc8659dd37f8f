"""Rewards see what was said, however the run is laid out."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agl_rewards import LlmJudge
from agl_testing.fake_openai import FakeOpenAI

import agl_core as agl
from agl_core.store._sqlite import SqliteStore
from agl_core.types import RolloutQuery
from tests.core.app.conftest import Bench, speak, two_agents


def test_a_reward_reads_the_calls_of_its_attempt(bench: Bench) -> None:
    """G14: agents, messages, answers, usage and finish reasons, all flushed before."""
    seen: list[tuple[agl.Task, str, list]] = []

    def reward(task: agl.Task, output: str, attempt: agl.AttemptRecord) -> float:
        seen.append((task, output, attempt.calls))
        return float(output == "yes")

    bench.train({"agent": two_agents, "reward": reward}, train__steps=1)

    assert len(seen) == 8
    for task, output, calls in seen:
        planner, writer = calls
        assert (planner.agent, writer.agent) == ("planner", "writer")
        assert planner.messages == [{"role": "user", "content": f"plan {task.id}"}]
        assert writer.answer == output
        assert writer.finish_reason == "stop"
        assert writer.usage.prompt_tokens == len(writer.record.prompt_token_ids)
        assert writer.usage.completion_tokens == len(writer.record.choices[0].token_ids)
        assert not writer.error


def test_a_run_stores_why_and_a_resumed_one_keeps_it(bench: Bench) -> None:
    """Each channel has its own reason; the rewards that trained are the same numbers."""
    seen: list[str] = []

    async def agent(task: agl.Task) -> str:
        agl.emit_reward(0.0, "note", why="from inside")
        return await two_agents(task)

    def reward(task: agl.Task, output: str, attempt: agl.AttemptRecord) -> dict[str, float]:
        seen.extend(each.why for each in attempt.rewards)
        return {"main": agl.Score(output == "yes", f"yes is {output == 'yes'}"), "short": 0.0}

    inputs = {"agent": agent, "reward": reward}
    first = bench.train(inputs, train__steps=1, store__name="sqlite")
    path = bench.directory / "bench" / "store.db"
    before = asyncio.run(_rewards(path))
    second = bench.train(inputs, train__steps=2, store__name="sqlite", train__resume=True)
    after = asyncio.run(_rewards(path))

    assert set(seen) == {"from inside"}
    assert before
    assert before.items() <= after.items()
    assert len(after) == 2 * len(before) == 2 * 3 * 8
    for given in after.values():
        main = f"yes is {bool(given.value)}"
        whys = {"note": "from inside", "main": main, "short": ""}
        assert given.why == whys[given.channel]
    assert (first.lost, second.lost) == ({}, {})


async def _rewards(path: Path) -> dict[str, agl.Reward]:
    store = SqliteStore(path)
    await store.open()
    rollouts = [rollout.id for rollout in await store.rollouts(RolloutQuery())]
    spans = await store.spans(rollouts)
    await store.close()
    return {span.id: span.reward for span in spans if span.reward is not None}


async def test_a_judge_is_no_part_of_the_attempt_and_keeps_its_verdicts(bench: Bench) -> None:
    """llm_judge: its requests bypass the gateway; verdicts lie in the run's directory."""
    async with FakeOpenAI(lambda body: '{"score": 0.5}') as server:
        options = {"base_url": server.base_url, "model": "judge", "rubric": "r"}
        judge = LlmJudge(**options, conversation=True)
        report = await bench.app(
            {"agent": two_agents, "reward": {"judged": judge}}, train__steps=1
        ).train()

    assert report.steps[0].channels == {"judged": 0.5}
    assert report.calls == 16
    assert report.lost == {}
    assert not any("x-agl-call" in answered.headers for answered in server.log)
    files = list((bench.directory / "bench" / "judge").iterdir())
    assert len(files) == len(server.log)


async def test_a_damaged_verdict_is_counted_and_asked_for_again(bench: Bench) -> None:
    """llm_judge: a file that was changed is no score; the report says how often this was so."""

    async def always(task: agl.Task) -> str:
        await speak("writer", f"write {task.id}")
        return "done"

    async with FakeOpenAI(lambda body: '{"score": 0.5}') as server:
        evaluations = []
        for _ in range(2):
            judge = LlmJudge(base_url=server.base_url, model="judge", rubric="r")
            app = bench.app({"agent": always, "reward": judge})
            evaluations.append(await app.evaluate())
            files = sorted((bench.directory / "bench" / "judge").iterdir())
            for file in files[:3]:
                file.write_bytes(file.read_bytes().replace(b"0.5", b"0.9"))

    assert [found.score.mean for found in evaluations] == [0.5, 0.5]
    assert [found.lost for found in evaluations] == [{}, {"judge_verdicts_damaged": 3}]
    assert len(server.log) == 4 + 3

"""Rewards see what was said, however the run is laid out."""

from __future__ import annotations

import agl_core as agl
from tests.core.app.conftest import Bench, two_agents


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

"""Training data rows from recorded attempts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from agl_core.interfaces import AdaptedAttempt, AttemptRecord
from agl_core.types import (
    AgentReturn,
    AttemptStatus,
    Mode,
    ModelCall,
    Reward,
    Trajectory,
    Triplet,
)
from agl_records._conversations import Conversation, calls_by_id, conversations


class CallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One sampled answer on a path."""

    call_id: str
    agent_run_id: str
    choice: int
    continued: bool
    """Whether the conversation continued from this choice, or the call had only one."""
    prompt_tokens: int
    response_tokens: int
    finish_reason: str | None
    temperature: float
    logprobs_mode: str
    policy_version: int
    reward: float | None
    """Rewards for this call or choice; None if there are none."""


class RewardRow(msgspec.Struct, frozen=True, kw_only=True):
    """One reward of the attempt, as it was given: its value is not weighted."""

    channel: str
    value: float
    why: str
    """The reason for the value; empty if none was given."""
    source: str
    """The reward function's name; empty for ``emit_reward``."""
    call: str | None
    choice: int | None
    agent_run: str | None
    agent: str | None


class TrajectoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One token path of one agent; the schema of the formats ``jsonl`` and ``parquet``."""

    run_id: str
    rollout_id: str
    attempt_id: str
    group_id: str
    task_id: str
    mode: Mode
    step: int
    status: AttemptStatus
    agent: str
    alias: str | None = None
    """The agent's `agl.alias` in this attempt; None if it has none."""
    policy: str
    reward: float | None
    """The agent's return: attempt, agent, run and call rewards, channels weighted. None for a
    failed attempt, or if the agent got no reward."""
    score: float | None
    """Weighted sum of all rewards of the attempt; None for a failed attempt."""
    rewards: list[RewardRow] = []
    """All rewards of the attempt, for any target; empty for a failed attempt."""
    messages: list[dict[str, Any]]
    """Messages of the path's last call, with its answer."""
    tools: list[dict[str, Any]]
    token_ids: list[int]
    call_index: list[int]
    """Index into `calls` of the call that sampled the token; -1 for context."""
    logprobs: list[float]
    """Log-probabilities as sampled; 0.0 for context."""
    calls: list[CallRow]


def agent_return(earned: AgentReturn) -> float:
    """Return the sum of an agent's rewards in an attempt, over all targets."""
    parts = [earned.value, *earned.runs.values(), *earned.calls.values()]
    parts += [value for choices in earned.choices.values() for value in choices.values()]
    return sum(parts)


def trajectory_rows(
    record: AttemptRecord, adapted: AdaptedAttempt, agents: Sequence[str]
) -> Iterator[TrajectoryRow]:
    """Yield the paths of the given agents."""
    calls = _calls(record)
    rewards = [_reward_row(reward) for reward in record.rewards]
    succeeded = record.attempt.status is AttemptStatus.SUCCEEDED
    for agent in agents:
        returned = adapted.returns[agent]
        reward = agent_return(returned) if succeeded and not returned.unrewarded else None
        for path in adapted.trajectories[agent]:
            last = path.calls[-1]
            (*_, conversation) = conversations(path, calls, unused=True)
            yield TrajectoryRow(
                run_id=record.rollout.run_id,
                rollout_id=record.rollout.id,
                attempt_id=record.attempt.id,
                group_id=record.rollout.group_id,
                task_id=record.rollout.task.id,
                mode=record.rollout.mode,
                step=record.rollout.step,
                status=record.attempt.status,
                agent=agent,
                alias=adapted.aliases.get(agent),
                policy=path.policy,
                reward=reward,
                score=adapted.score if succeeded else None,
                rewards=rewards if succeeded else [],
                messages=conversation.messages,
                tools=calls[last.call_id].tools,
                token_ids=path.token_ids.tolist(),
                call_index=path.call_index.tolist(),
                logprobs=path.logprobs.tolist(),
                calls=[_call_row(triplet) for triplet in path.calls],
            )


def chat_examples(
    record: AttemptRecord, adapted: AdaptedAttempt, agents: Sequence[str]
) -> Iterator[Conversation]:
    """Yield the paths of the given agents as conversations to fine-tune on."""
    calls = _calls(record)
    for agent in agents:
        for path in adapted.trajectories[agent]:
            yield from conversations(path, calls)


def unused_choices(paths: Sequence[Trajectory]) -> int:
    """Return the number of choices of ``n > 1`` calls that no example of `chat_examples` has."""
    return sum(
        1
        for path in paths
        for triplet in path.calls
        if not triplet.continued and triplet.reward is None
    )


def _calls(record: AttemptRecord) -> Mapping[str, ModelCall]:
    return calls_by_id(span.call for span in record.spans if span.call is not None)


def _reward_row(reward: Reward) -> RewardRow:
    return RewardRow(
        channel=reward.channel,
        value=reward.value,
        why=reward.why,
        source=reward.source,
        call=reward.target.call,
        choice=reward.target.choice,
        agent_run=reward.target.agent_run,
        agent=reward.target.agent,
    )


def _call_row(triplet: Triplet) -> CallRow:
    return CallRow(
        call_id=triplet.call_id,
        agent_run_id=triplet.agent_run_id,
        choice=triplet.choice,
        continued=triplet.continued,
        prompt_tokens=len(triplet.prompt_ids),
        response_tokens=len(triplet.response_ids),
        finish_reason=triplet.finish_reason,
        temperature=triplet.temperature,
        logprobs_mode=triplet.logprobs_mode,
        policy_version=triplet.policy_version,
        reward=triplet.reward,
    )

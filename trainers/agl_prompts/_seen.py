"""The results of a candidate, as an optimiser sees them."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Any, Final

import msgspec

from agl_core.interfaces import AttemptRecord, Filter, PromptOutcome
from agl_core.types import FailureKind, Reward, Task

INFRASTRUCTURE: Final = frozenset({FailureKind.ENGINE, FailureKind.LOST, FailureKind.CANCELLED})
"""Failures that do not depend on the prompt."""
AGAIN: Final = INFRASTRUCTURE | {FailureKind.REWARD, FailureKind.CAPTURE}
"""Failures after which a rollout is repeated once. If a reward or the capture fails again, the
attempt counts as a failure of the agent, as the answer may be the cause."""


class SeenCall(msgspec.Struct, frozen=True, kw_only=True):
    """One model call of a rollout."""

    agent: str
    messages: list[dict[str, Any]]
    """The prompt as the model received it, in the form of chat completions."""
    answer: str
    tool_calls: list[dict[str, Any]] = []
    reward: float | None = None
    """Sum of the rewards for this call alone; None without any."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a candidate on one task."""

    task: Task
    score: float
    """Mean over the samples that were not lost; a failed attempt of the agent has the run's
    penalty."""
    failure: FailureKind | None = None
    """Failure of the shown sample."""
    why: str = ""
    """Reasons of the rewards and message of the failure, of the shown sample."""
    calls: tuple[SeenCall, ...] = ()
    """Calls of the shown sample, which is the one with the lowest score."""
    scores: tuple[float, ...] = ()
    """Scores of the samples that were not lost."""

    @property
    def lost(self) -> bool:
        """Whether the infrastructure failed in every sample; the score then has no meaning."""
        return not self.scores


def is_lost(outcome: PromptOutcome) -> bool:
    """Whether the rollout failed for a reason outside of the agent."""
    return outcome.failure in INFRASTRUCTURE


def seen_of(task: Task, samples: Sequence[PromptOutcome]) -> Seen:
    """Return the result of the samples of one task; there is at least one sample."""
    kept = [sample for sample in samples if not is_lost(sample)]
    scores = tuple(sample.score for sample in kept)
    shown = min(kept or samples, key=lambda sample: sample.score)
    return Seen(
        task=task,
        score=fsum(scores) / len(scores) if scores else 0.0,
        failure=shown.failure,
        why=_why(shown),
        calls=_calls(shown.record),
        scores=scores,
    )


def cleaned(seen: Seen, by: Filter) -> Seen:
    """Return a result whose texts are those that a filter leaves; the texts of prompts stay."""
    change = msgspec.structs.replace

    def clean(value: Any) -> Any:
        return by.cleaned(value, "reflection")

    task = change(seen.task, input=clean(seen.task.input), expected=clean(seen.task.expected))
    calls = [
        change(
            call,
            messages=clean(call.messages),
            answer=clean(call.answer),
            tool_calls=clean(call.tool_calls),
        )
        for call in seen.calls
    ]
    return change(seen, task=task, why=clean(seen.why), calls=tuple(calls))


def _why(outcome: PromptOutcome) -> str:
    rewards = [reward for reward in outcome.record.rewards if reward.why]
    several = len({reward.channel for reward in outcome.record.rewards}) > 1
    words = [f"{each.channel}: {each.why}" if several else each.why for each in rewards]
    failure = outcome.record.attempt.failure
    if outcome.failure is not None and failure is not None:
        words.append(f"The attempt failed: {failure.message}")
    return "\n".join(words)


def _calls(record: AttemptRecord) -> tuple[SeenCall, ...]:
    earned: dict[str, list[Reward]] = {}
    for reward in record.rewards:
        if reward.target.call is not None:
            earned.setdefault(reward.target.call, []).append(reward)
    return tuple(
        SeenCall(
            agent=call.agent,
            messages=call.messages,
            answer=call.answer,
            tool_calls=call.tool_calls,
            reward=fsum(each.value for each in earned[call.id]) if call.id in earned else None,
        )
        for call in record.calls
    )

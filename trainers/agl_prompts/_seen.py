"""What an optimiser sees of a candidate's rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from agl_core.interfaces import AttemptRecord, PromptOutcome
from agl_core.types import FailureKind, Task

INFRASTRUCTURE: Final = frozenset({FailureKind.ENGINE, FailureKind.LOST, FailureKind.CANCELLED})
"""Failures that say nothing about the prompt."""
AGAIN: Final = INFRASTRUCTURE | {FailureKind.REWARD, FailureKind.CAPTURE}
"""Failures after which a rollout is repeated once. A reward or a capture that fails again counts
as a failure of the agent: it may be the prompt that causes it."""


class SeenCall(msgspec.Struct, frozen=True, kw_only=True):
    """One answered model call of a rollout."""

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
    """Mean over the samples that were not lost; a failure of the agent has the run's penalty."""
    failure: FailureKind | None = None
    """Failure of the sample that is shown."""
    why: str = ""
    """Why the rewards have their values, and the message of a failure; of the shown sample."""
    calls: tuple[SeenCall, ...] = ()
    """Calls of the shown sample, which is the one with the lowest score."""
    scores: tuple[float, ...] = ()
    """Scores of the samples that were not lost."""

    @property
    def lost(self) -> bool:
        """Whether the infrastructure failed in every sample, so that the score says nothing."""
        return not self.scores

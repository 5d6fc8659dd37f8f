"""Protocols of prompt optimisation: the phase of a run that tunes prompts, and its optimisers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from agl_core.interfaces._learning import AttemptRecord
from agl_core.types import FailureKind, Losses, PromptTemplate, Task
from agl_core.types.run import Tuned

Candidate = Mapping[str, str]
"""Name of a prompt to its text. A prompt that is missing keeps its incumbent text."""


class TunedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that may be tuned, with its incumbent text."""

    name: str
    agents: tuple[str, ...]
    """Exact names or globs of the agents that use it."""
    text: str
    placeholders: frozenset[str] = frozenset()
    """Names of the ``{name}`` placeholders of the text; a candidate has the same ones."""
    captured: bool = False
    """The program sends the text itself, and the gateway replaces it."""
    tool: str = ""
    """Name of the tool whose description it is; empty for a system prompt."""


@runtime_checkable
class LearnsPrompts(Protocol):
    """A `Rewriter` of captured prompts, which also learns them."""

    def learn(
        self, records: Sequence[AttemptRecord], *, name: str, agents: Sequence[str], tool: str = ""
    ) -> PromptTemplate:
        """Return a prompt whose `known` and `template` are the text that the agents send.

        Args:
            records: Attempts in which no prompt was replaced.
            name: The prompt's name, for errors.
            agents: Exact names or globs.
            tool: Name of the tool whose description it is; empty for the system prompt.

        Raises:
            ConfigError: no such agent made a call, none sends the tool, or the texts differ too
                much; the message shows the texts.
        """
        ...


class PromptRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of a candidate on a task."""

    candidate: Candidate
    task: Task
    key: str
    """Identifies the rollout within its phase, also after the run is resumed."""
    asking: int = 0
    """How often the candidate ran on this task before; the seed depends on it, not on the
    candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOutcome:
    """The result of one rollout of a candidate."""

    record: AttemptRecord
    score: float
    """Weighted sum of the rewards; the configured penalty if the attempt failed."""
    failure: FailureKind | None = None


class PromptPhase(Protocol):
    """The abilities of a run that tunes prompts, for an optimiser."""

    @property
    def number(self) -> int:
        """0-based number of the phase in the run."""
        ...

    @property
    def optimizer(self) -> str:
        """Registered name of the optimiser."""
        ...

    @property
    def rollouts(self) -> int:
        """Budget of the phase in rollouts."""
        ...

    @property
    def seed(self) -> int: ...

    @property
    def directory(self) -> Path:
        """Directory of the run's prompt phases, which survives a resumption."""
        ...

    @property
    def prompts(self) -> Mapping[str, TunedPrompt]:
        """The prompts that may be tuned; their texts are the incumbent's."""
        ...

    @property
    def train(self) -> Sequence[Task]: ...

    @property
    def val(self) -> Sequence[Task]:
        """Held-out tasks; the training tasks if the run has no others."""
        ...

    @property
    def losses(self) -> Losses:
        """Counts of the run's losses, to which an optimiser adds its own."""
        ...

    async def run(self, asked: Sequence[PromptRollout]) -> list[PromptOutcome]:
        """Run these rollouts and return their outcomes in this order.

        A rollout that an interrupted run has finished under the same key is not run again.

        Raises:
            StoreError: the store failed.
        """
        ...

    def stage(self, text: str) -> None:
        """Show what the phase does now, to people who watch the run."""
        ...


class Tuner(Protocol):
    """Tunes the prompts of a run, in its phases that name an optimiser."""

    async def prompts(self) -> dict[str, PromptTemplate]:
        """Return every prompt of the configuration, after learning the captured ones in rollouts.

        Raises:
            ConfigError: see `LearnsPrompts.learn`.
            StoreError: the store failed.
        """
        ...

    async def tune(self, number: int, prompts: Mapping[str, PromptTemplate]) -> Tuned:
        """Run one prompt phase to its end, without rollouts under way.

        Args:
            number: 0-based number of the phase in the configuration.
            prompts: Every prompt of the run, with the incumbent's text.

        Raises:
            ConfigError: see `Optimizer.optimize`.
            TrainingError: see `Optimizer.optimize`.
            StoreError: the store failed.
        """
        ...


class Optimizer(Protocol):
    """Searches for better prompts in one phase of a run."""

    async def optimize(self, phase: PromptPhase) -> Tuned:
        """Return the best candidate by validation score; the first wins ties.

        Raises:
            ConfigError: the phase's budget is too small for one proposal, or a setting is wrong.
            TrainingError: an editor model has never answered.
        """
        ...

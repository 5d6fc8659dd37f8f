"""Protocols from records to a batch: adapters, algorithms, and the layout of tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import msgspec

from agl_core import semconv
from agl_core.interfaces._serving import Engine
from agl_core.types import (
    AgentReturn,
    Attempt,
    Batch,
    CallCredit,
    Choice,
    Losses,
    ModelCall,
    Policy,
    Reward,
    Rollout,
    Span,
    SpanKind,
    Trajectory,
    TrajectoryGroup,
    Triplet,
)


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a call; None if the backend does not state them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class AgentCall(msgspec.Struct, frozen=True, kw_only=True):
    """One model call of an attempt, joined from the records of client and gateway."""

    id: str
    agent: str
    """The agent that made the call; empty if none is named."""
    messages: list[dict[str, Any]]
    """The prompt, in the form of chat completions."""
    answer: str
    """Text of the answer; of the first choice if there are several."""
    reasoning: str = ""
    """The thinking that the backend returned apart from the text."""
    tool_calls: list[dict[str, Any]] = []
    """Each is ``{"id", "type", "function": {"name", "arguments"}}``."""
    finish_reason: str | None = None
    usage: Usage = Usage()
    error: str = ""
    """Why there is no complete answer; empty without an error."""
    record: ModelCall
    """The gateway's record: tools, sampling, all choices, tokens."""


def agent_calls(spans: Iterable[Span]) -> list[AgentCall]:
    """Return the calls of an attempt in the order in which they were sent.

    The last try of a call counts. Calls without an answer are included.
    """
    clients: dict[str, Span] = {}
    last: dict[str, Span] = {}
    for span in spans:
        if span.call is None:
            if span.kind is SpanKind.LLM and span.call_id is not None:
                clients.setdefault(span.call_id, span)
        elif not span.call.superseded:
            known = last.get(span.call.id)
            if known is None or known.call is None or known.call.tries < span.call.tries:
                last[span.call.id] = span
    calls = [
        _agent_call(span, span.call, clients.get(call_id))
        for call_id, span in last.items()
        if span.call is not None
    ]
    return sorted(calls, key=lambda call: (call.record.started_ns, call.id))


def _agent_call(span: Span, record: ModelCall, client: Span | None) -> AgentCall:
    choice = min(record.choices, key=lambda each: each.index, default=Choice())
    error = record.error or ("" if record.complete else "the answer was cut off before its end")
    attributes = span.attributes
    return AgentCall(
        id=record.id,
        agent=(client.agent if client else None) or record.agent,
        messages=record.messages,
        answer=choice.text,
        reasoning=choice.reasoning,
        tool_calls=choice.tool_calls,
        finish_reason=choice.finish_reason,
        usage=Usage(
            prompt_tokens=attributes.get(semconv.GEN_AI_USAGE_INPUT_TOKENS),
            completion_tokens=attributes.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS),
        ),
        error=error,
        record=record,
    )


class Algorithm(Protocol):
    """An advantage estimator with a loss, such as GRPO or RLOO."""

    def credit(self, group: TrajectoryGroup) -> list[CallCredit]:
        """Return the advantage and token weights of every trained choice of the group.

        Raises:
            TrainingError: the group is empty.
        """
        ...

    @property
    def loss(self) -> str: ...

    @property
    def loss_options(self) -> Mapping[str, Any]: ...


@runtime_checkable
class Demonstrator(Algorithm, Protocol):
    """An algorithm that trains on examples of its own, so that its steps run no agent."""

    async def demonstrate(
        self, step: int, policies: Mapping[str, Policy], engine: Engine, *, seed: int
    ) -> tuple[list[TrajectoryGroup], Losses]:
        """Return a step's examples, the same whenever the step is taken, and what was left out.

        `credit` gets them as it gets groups of attempts. The calls name a policy that is trained,
        and its version.

        Args:
            step: 0, 1, ...
            policies: The run's policies in config order, by name, with their current versions.
            engine: Has the weights.
            seed: The run's seed.

        Raises:
            ConfigError: an example does not fit the run.
            TrainingError: no example of the step is usable.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One ended attempt with all its records: the input of an adapter."""

    rollout: Rollout
    attempt: Attempt
    spans: list[Span]

    @property
    def calls(self) -> list[AgentCall]:
        """The model calls of all agents, in the order in which they were sent."""
        return agent_calls(self.spans)

    @property
    def rewards(self) -> list[Reward]:
        """The rewards with their reasons, in the order of the spans."""
        return [span.reward for span in self.spans if span.reward is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedAttempt:
    """An adapter's result for one attempt; mappings are keyed by trained agent."""

    rollout_id: str
    attempt_id: str
    group_id: str
    task_id: str
    trajectories: Mapping[str, Sequence[Trajectory]]
    """Of agents with at least one sample; empty in validation and test rollouts."""
    returns: Mapping[str, AgentReturn]
    """Of the same agents as `trajectories`."""
    score: float
    """Sum of all rewards of the attempt, for any target, weighted by channel."""
    channels: Mapping[str, float]
    """Unweighted sum of the attempt's rewards per channel."""
    calls: int
    """Number of answered calls of all agents."""
    seen: frozenset[str]
    """All agents that ran or called a model, trained or not; by alias if they have one."""
    losses: Losses
    overflowed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Trained agents without a sample because none of their prompts fit, to the error they got."""
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Agents that have an alias in this attempt, to their alias."""
    breaks: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """Trained agents to the numbers of their breaks by likely cause, as diagnoses of plugins find."""


Diagnose = Callable[[AttemptRecord, AdaptedAttempt], Mapping[str, Mapping[str, int]]]
"""Returns counts of what it found in an adapted attempt, by trained agent and cause."""


class Filter(Protocol):
    """Decides what training may learn from, such as nothing that holds personal data."""

    def adapted(self, record: AttemptRecord, adapted: AdaptedAttempt) -> AdaptedAttempt:
        """Return the attempt without the calls that may not be trained on.

        They are counted in its losses as ``calls_filtered_<cause>``. Rewards for the attempt, the
        agent or its run stay with its other calls.
        """
        ...

    def cleaned(self, value: Any, use: str) -> Any:
        """Return a JSON value or a text as others may read it; without a fault, the value itself.

        Args:
            value: Messages, tools, reasons, inputs, or the data of an event.
            use: ``imitation`` (conversations to train on), ``reflection`` (what models read that
                write prompts) or ``events`` (what an event bus gets).
        """
        ...


@runtime_checkable
class TakesFilters(Protocol):
    """An algorithm or optimiser that reads texts."""

    def filter_by(self, filters: Sequence[Filter]) -> None:
        """Set the filters of the run, before the first phase."""
        ...


class Adapter(Protocol):
    """Turns one ended attempt into trajectories and returns."""

    def adapt(self, record: AttemptRecord) -> AdaptedAttempt:
        """Join, select and credit. The rewards of a failed attempt are not used.

        Raises:
            CaptureError: the records do not match exactly; the whole attempt is unusable.
            RewardError: no reward arrived, or one is not finite or its target does not exist.
        """
        ...

    def check(self, seen: Collection[str]) -> None:
        """Check that every agent to train was seen.

        Raises:
            ConfigError: a name or glob matches no agent.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditedCall:
    """One sampled choice with its credit and its group."""

    triplet: Triplet
    credit: CallCredit
    group: int
    """0, 1, ... in the order of the batch's groups."""


class ForestBuilder(Protocol):
    """Builds a `Batch` from the sampled choices of one policy."""

    def __call__(self, calls: Sequence[CreditedCall], *, policy: str, step: int) -> Batch:
        """Build the batch; the order of `calls` does not change the arrays.

        Raises:
            TrainingError: there are no choices, or credits and tokens do not align.
        """
        ...

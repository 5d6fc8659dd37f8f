"""From what was recorded to a batch: adapters, algorithms, and the layout of tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from agl_core import semconv
from agl_core.types import (
    AgentReturn,
    Attempt,
    Batch,
    CallCredit,
    Choice,
    Losses,
    ModelCall,
    Rollout,
    Span,
    SpanKind,
    Trajectory,
    TrajectoryGroup,
    Triplet,
)


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a call; None where the backend does not state them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class AgentCall(msgspec.Struct, frozen=True, kw_only=True):
    """One model call of an attempt, joined from the records of client and gateway."""

    id: str
    agent: str
    """The agent that made it; empty where none is named."""
    messages: list[dict[str, Any]]
    """What was sent, in the form of chat completions."""
    answer: str
    """Text of the answer; of the first choice where there are several."""
    reasoning: str = ""
    """What the backend gave as thinking, apart from the text."""
    tool_calls: list[dict[str, Any]] = []
    """``{"id", "type", "function": {"name", "arguments"}}`` each."""
    finish_reason: str | None = None
    usage: Usage = Usage()
    error: str = ""
    """Why there is no complete answer; empty without an error."""
    record: ModelCall
    """Everything the gateway recorded: tools, sampling, all choices, tokens."""


def agent_calls(spans: Iterable[Span]) -> list[AgentCall]:
    """The calls of an attempt in the order in which they were sent.

    Of the tries of one call the last counts. Calls without an answer are among them.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSetup:
    """What an engine needs to know of the chosen algorithm to train."""

    name: str
    loss_factory: Callable[[], Any]
    """Makes the algorithm's loss. Raises ConfigError where the engine has none of that name, or it
    does not take the options that the algorithm gives."""
    seed: int = 0
    """Of the run; everything random in an update derives from it."""
    lr: float = 1e-5
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    epochs: int = 1
    """Passes over one batch."""
    minibatches: int = 1
    """Optimizer steps per pass; whole groups stay together."""
    kl_weight: float = 0.0
    """Weight of the k3 divergence to the frozen reference; 0 loads no reference."""


class Algorithm(Protocol):
    """An advantage plus a loss: everything that makes GRPO differ from RLOO."""

    def credit(self, group: TrajectoryGroup) -> list[CallCredit]:
        """Advantage and weight streams of every trained choice of the group.

        Raises:
            TrainingError: the group is empty.
        """
        ...

    @property
    def loss(self) -> str: ...

    @property
    def loss_options(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One ended attempt with everything recorded of it, as adapters take it."""

    rollout: Rollout
    attempt: Attempt
    spans: list[Span]

    @property
    def calls(self) -> list[AgentCall]:
        """What every agent was asked and answered, in order; see `AgentCall`."""
        return agent_calls(self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedAttempt:
    """What an adapter made of one attempt; mappings are keyed by trained agent."""

    rollout_id: str
    attempt_id: str
    group_id: str
    task_id: str
    trajectories: Mapping[str, Sequence[Trajectory]]
    """Agents with at least one sample; empty in validation and test rollouts."""
    returns: Mapping[str, AgentReturn]
    """The same agents as `trajectories`."""
    score: float
    """Total return: every reward of the attempt, for any target, weighted by channel."""
    channels: Mapping[str, float]
    """Unweighted sum of the attempt's rewards per channel."""
    calls: int
    """Calls that gave an answer, of every agent."""
    seen: frozenset[str]
    """Every agent that spoke or ran, trained or not; by its alias where it has one."""
    losses: Losses
    overflowed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Trained agents without a sample because no prompt of theirs fit, to what was answered."""
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Agents that have an alias in this attempt, to it."""
    breaks: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """Trained agents to the likely causes for which a prompt of theirs continued no earlier one."""


class Adapter(Protocol):
    """Turns one ended attempt into trajectories and returns."""

    def adapt(self, record: AttemptRecord) -> AdaptedAttempt:
        """Join, select and credit. An attempt that failed is taken without its rewards.

        Raises:
            CaptureError: what was recorded is not exactly true; the whole attempt is unusable.
            RewardError: no reward arrived, or one is not finite or hits nothing.
        """
        ...

    def check(self, seen: Collection[str]) -> None:
        """Compare the agents to train with those that were seen.

        Raises:
            ConfigError: a name or glob matches no agent.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditedCall:
    """One sampled choice with what it earned and the group it earned it in."""

    triplet: Triplet
    credit: CallCredit
    group: int
    """0, 1, ... in the order of the batch's groups."""


class ForestBuilder(Protocol):
    """Lays the sampled choices of one policy out as a `Batch`."""

    def __call__(self, calls: Sequence[CreditedCall], *, policy: str, step: int) -> Batch:
        """Build the batch; equal input gives equal arrays, in any order.

        Raises:
            TrainingError: there is nothing to lay out, or credits and tokens do not align.
        """
        ...

"""From what was recorded to a batch: adapters, algorithms, and the layout of tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agl_core.interfaces.agent_call import AgentCall, agent_calls
from agl_core.types import (
    AgentReturn,
    Attempt,
    Batch,
    CallCredit,
    Losses,
    Rollout,
    Span,
    Trajectory,
    TrajectoryGroup,
    Triplet,
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
    """Total return: every reward of the attempt, whatever its target, weighted by channel."""
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
        """Build the batch; equal input gives equal arrays, whatever its order.

        Raises:
            TrainingError: there is nothing to lay out, or credits and tokens do not align.
        """
        ...

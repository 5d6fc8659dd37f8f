"""A request to run an agent on a task, and its fenced executions."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from agl_core.clocks import monotonic, wall
from agl_core.thinking import DEFAULT_TAGS
from agl_core.types.resources import RESERVED_PREFIX, agent_matches
from agl_core.types.task import Task

Mode = Literal["train", "val", "test"]

THINKING_TAGS: Final = "thinking_tags"
PROMPT_BUDGETS: Final = "prompt_budgets"
CAPTURE: Final = "capture"
"""Keys of `Rollout.metadata` with settings of the run that attempts need wherever they are run."""


class RolloutStatus(StrEnum):
    """Where a rollout stands; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (RolloutStatus.SUCCEEDED, RolloutStatus.FAILED, RolloutStatus.CANCELLED)


class AttemptStatus(StrEnum):
    """How one execution stands or ended; all but RUNNING are final."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Its worker stopped sending heartbeats."""

    @property
    def final(self) -> bool:
        return self is not AttemptStatus.RUNNING


class FailureKind(StrEnum):
    """Why an attempt did not succeed; retries and credit policies are set per kind."""

    AGENT = "agent"
    REWARD = "reward"
    ENGINE = "engine"
    DEADLINE = "deadline"
    CONTEXT_OVERFLOW = "context_overflow"
    CAPTURE = "capture"
    LOST = "lost"
    CANCELLED = "cancelled"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong in an attempt, kept as data."""

    kind: FailureKind
    message: str
    type: str = ""
    """Qualified class name of the exception, when there was one."""
    traceback: str = ""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines and retries of one rollout."""

    timeout_s: float = 300.0
    """From claim to end; reaches the agent, its HTTP calls and the store."""
    lease_s: float = 30.0
    """An attempt without a heartbeat for this long is LOST."""
    max_attempts: int = 1
    retry_on: tuple[FailureKind, ...] = (FailureKind.ENGINE, FailureKind.LOST)
    reward_grace_s: float = 0.0
    """Rewards for an ended attempt are taken this long, unless it is consumed before."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One fenced execution of a rollout."""

    id: str
    rollout_id: str
    fence: int
    """1 for the first attempt, then 2, ...; a write with a lower fence is refused."""
    worker: str
    claim_id: str = ""
    """Names the request it was handed out to, which is answered with it when repeated."""
    status: AttemptStatus = AttemptStatus.RUNNING
    started_at: float = 0.0
    """Unix seconds, as are all ``*_at``."""
    ended_at: float | None = None
    lease_until: float = 0.0
    deadline_at: float = 0.0
    failure: Failure | None = None
    output: Any = None
    """What the agent returned, if it is a JSON value; its ``repr`` otherwise."""
    sealed: bool = False
    """The runner has finished and the gateway has flushed: no record can follow."""

    def monotonic_deadline(self, limits: Limits) -> float:
        """`deadline_at` on the clock of `time.monotonic`; without one, `limits` count from now."""
        left_s = self.deadline_at - wall() if self.deadline_at else limits.timeout_s
        return monotonic() + left_s

    def shifted(self, by_s: float) -> Attempt:
        """The same attempt in the time of a clock that is `by_s` ahead; times unset stay so."""
        if not by_s:
            return self
        times = ("started_at", "ended_at", "lease_until", "deadline_at")
        known = {name: getattr(self, name) for name in times}
        return replace(self, **{name: at + by_s for name, at in known.items() if at})


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """A request to run the agent on one task."""

    id: str
    task: Task
    run_id: str
    mode: Mode = "train"
    group_id: str = ""
    """Rollouts of one task and step that share a baseline."""
    step: int = 0
    seed: int = 0
    resources_version: int = 0
    limits: Limits = Limits()
    status: RolloutStatus = RolloutStatus.QUEUED
    created_at: float = 0.0
    attempts: tuple[Attempt, ...] = ()
    """Oldest first; filled by the store."""
    consumed: bool = False
    metadata: dict[str, Any] = {}

    @property
    def attempt(self) -> Attempt | None:
        """The latest attempt; it drives the rollout's status."""
        return self.attempts[-1] if self.attempts else None

    @property
    def thinking_tags(self) -> tuple[str, ...]:
        """What the models of this run write their thinking in: ``capture.thinking_tags``."""
        return tuple(self.metadata.get(THINKING_TAGS) or DEFAULT_TAGS)

    def prompt_budget(self, agent: str) -> int | None:
        """Tokens that a prompt of the agent may have: the first of ``prompt_budgets`` that fits."""
        budgets: dict[str, int] = self.metadata.get(PROMPT_BUDGETS) or {}
        fitting = (tokens for name, tokens in budgets.items() if agent_matches(name, agent))
        return next(fitting, None)

    def trains(self, agent: str | None) -> bool:
        """Whether the run trains the agent: `agents` names it and its policy is trainable."""
        capture: dict[str, Any] = self.metadata.get(CAPTURE) or {}
        if not agent or agent.startswith(RESERVED_PREFIX):
            return False
        if not any(agent_matches(pattern, agent) for pattern in capture.get("agents", ())):
            return False
        policies: list[tuple[str, bool]] = capture.get("policies", [])
        return next((each for pattern, each in policies if agent_matches(pattern, agent)), False)

    def may_send_to(self, host: str) -> bool:
        """Whether ``capture.elsewhere`` lets model requests of agents that are not trained out."""
        capture: dict[str, Any] = self.metadata.get(CAPTURE) or {}
        if capture.get("elsewhere") != "refuse":
            return True
        allowed: list[str] = capture.get("allow_hosts", [])
        return any(agent_matches(pattern, host) for pattern in allowed)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout handed to a worker together with its fresh attempt."""

    rollout: Rollout
    attempt: Attempt


class RolloutQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of `Store.rollouts`; empty fields do not filter. Ordered by id, which is by time."""

    ids: tuple[str, ...] = ()
    run_id: str | None = None
    group_id: str | None = None
    mode: Mode | None = None
    statuses: tuple[RolloutStatus, ...] = ()
    after_id: str | None = None
    """Return rollouts with a greater id only: the cursor of the next page."""
    limit: int = 1000

"""Rollouts, their attempts and failures, and the resources they start from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from agl_core.clocks import monotonic, wall
from agl_core.errors import ConfigError, ContextOverflowError
from agl_core.text import exact_bytes
from agl_core.thinking import DEFAULT_TAGS
from agl_core.types.span import ModelCall
from agl_core.types.task import Task

RESERVED_PREFIX: Final = "@"
"""Prefix of reserved names, such as ``@selector``: calls of a framework, never trained."""

PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A ``{name}`` of a `PromptTemplate`."""


class LLM(msgspec.Struct, frozen=True, kw_only=True, tag="llm"):
    """A policy behind an OpenAI-compatible endpoint."""

    model: str
    base_url: str = ""
    api_key: str = ""
    policy: str = ""
    version: int = 0


class PromptTemplate(msgspec.Struct, frozen=True, kw_only=True, tag="prompt_template"):
    """A prompt with ``{name}`` placeholders; every other brace is literal text."""

    template: str
    agents: tuple[str, ...] = ()
    """Exact names or globs of the agents that use it; empty if it is not tuned."""
    known: str | None = None
    """The text that the program sends itself, for which the gateway sends `template`; None if the
    agent reads the prompt with ``agl.resource``."""
    tool: str = ""
    """Name of the tool whose description it is; empty for a system prompt."""

    @property
    def placeholders(self) -> frozenset[str]:
        return frozenset(PLACEHOLDER.findall(self.template))

    def format(self, **values: Any) -> str:
        """Replace the placeholders that have a value; placeholders inside values stay.

        Raises:
            ConfigError: the template has no placeholder of that name.
        """
        unknown = sorted(set(values) - self.placeholders)
        if unknown:
            raise ConfigError(
                f"Prompt has no placeholders {unknown}; it has {sorted(self.placeholders)}"
            )
        return PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), self.template)


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable, versioned set of named resources."""

    version: int = 0
    """Set by the store when published: 1, 2, ..."""
    run_id: str = ""
    step: int = 0
    items: dict[str, LLM | PromptTemplate] = {}
    created_at: float = 0.0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A named set of weights and the agents it serves."""

    name: str
    agents: tuple[str, ...] = ("*",)
    """Exact names or globs; the first policy in config order that matches an agent serves it."""
    trainable: bool = False
    model: str = ""
    version: int = 0
    image_token: int | None = None
    """Placeholder id for each part of an image in its prompts; None if it trains only on text."""
    vocab_size: int | None = None
    """Upper bound of token ids, exclusive; None if the engine does not know it."""
    shows_tools: bool = True
    """False if the model's chat template is known to leave out the tools of a request."""
    train_constrained: bool = False
    """Train on answers that were sampled under a constraint; see `Sampling.constraints`."""
    base_url: str = ""
    """Address of the endpoint that serves the policy; empty if the run's engine serves it."""
    share: float | None = None
    """Probability that the policy plays an agent of a training attempt; see `opponent`."""

    def serves(self, agent: str) -> bool:
        """Return whether a name or glob of the policy matches; an earlier policy has precedence.

        False for a policy with a `share`, which is drawn; see `opponent`.
        """
        return self.share is None and any_matches(self.agents, agent)

    def plays(self, agent: str) -> bool:
        """Return whether the policy has a `share` of the agent's training attempts."""
        return self.share is not None and any_matches(self.agents, agent)


def agent_matches(pattern: str, agent: str) -> bool:
    """Return whether a name or glob (``*``, ``?``, ``[...]``) matches the agent; case-sensitive."""
    return pattern == agent or fnmatchcase(agent, pattern)


def any_matches(patterns: Iterable[str], agent: str) -> bool:
    """Return whether one of the names or globs matches the agent; see `agent_matches`."""
    return any(agent_matches(pattern, agent) for pattern in patterns)


def opponent(policies: Iterable[Policy], seed: int, *, agent: str, known_as: str) -> Policy | None:
    """Return the policy with a `share` that plays an agent instead of its trainable policy, or None.

    The draw depends only on the rollout's seed and the agent's name. So it is the same for all
    calls of the agent, in every process and in every attempt of the rollout.

    Args:
        policies: All policies in config order.
        seed: Seed of the rollout.
        agent: Name of the agent; reserved names and no name are not drawn.
        known_as: Its alias, or else its name; names and globs of policies are matched with it.
    """
    if not agent or agent.startswith(RESERVED_PREFIX):
        return None
    digest = hashlib.sha256(exact_bytes(f"{seed}\0{agent}\0opponent")).digest()
    drawn, total = int.from_bytes(digest[:8], "big") / 2**64, 0.0
    for policy in policies:
        total += (policy.share or 0.0) if policy.plays(known_as) else 0.0
        if drawn < total:
            return policy
    return None


Mode = Literal["train", "val", "test"]
"""What a rollout is for."""

THINKING_TAGS: Final = "thinking_tags"
PROMPT_BUDGETS: Final = "prompt_budgets"
CAPTURE: Final = "capture"
"""Keys of `Rollout.metadata` for settings of the run that attempts need in any process."""


class RolloutStatus(StrEnum):
    """Status of a rollout; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (RolloutStatus.SUCCEEDED, RolloutStatus.FAILED, RolloutStatus.CANCELLED)


class AttemptStatus(StrEnum):
    """Status of an attempt; all but RUNNING are final."""

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
    """Cause of a failed attempt; retries and credit policies are set per kind."""

    AGENT = "agent"
    REWARD = "reward"
    ENGINE = "engine"
    DEADLINE = "deadline"
    CONTEXT_OVERFLOW = "context_overflow"
    CAPTURE = "capture"
    LOST = "lost"
    CANCELLED = "cancelled"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded failure of an attempt."""

    kind: FailureKind
    message: str
    type: str = ""
    """Qualified class name of the exception, if there was one."""
    traceback: str = ""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines and retries of one rollout."""

    timeout_s: float = 300.0
    """From claim to end; it limits the agent, its HTTP calls and the store."""
    lease_s: float = 30.0
    """An attempt without a heartbeat for this long is LOST."""
    max_attempts: int = 1
    retry_on: tuple[FailureKind, ...] = (FailureKind.ENGINE, FailureKind.LOST)
    reward_grace_s: float = 0.0
    """Rewards for an ended attempt are accepted for this long, unless it is consumed before."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One fenced execution of a rollout."""

    id: str
    rollout_id: str
    fence: int
    """1 for the first attempt, then 2, ...; a write with a lower fence is refused."""
    worker: str
    claim_id: str = ""
    """Id of the claim request, which gets the same attempt when it is repeated."""
    status: AttemptStatus = AttemptStatus.RUNNING
    started_at: float = 0.0
    """Unix seconds, as all ``*_at``."""
    ended_at: float | None = None
    lease_until: float = 0.0
    deadline_at: float = 0.0
    failure: Failure | None = None
    output: Any = None
    """The agent's return value, if it is a JSON value; its ``repr`` otherwise."""
    sealed: bool = False
    """Whether the runner has finished and the gateway has flushed, so that no record follows."""

    def monotonic_deadline(self, limits: Limits) -> float:
        """Return `deadline_at` on the clock of `time.monotonic`; if unset, `limits` from now on."""
        left_s = self.deadline_at - wall() if self.deadline_at else limits.timeout_s
        return monotonic() + left_s

    def shifted(self, by_s: float) -> Attempt:
        """Return the attempt with its times on a clock that is `by_s` ahead; unset times stay."""
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
    """Id of the rollouts of one task and step that share a baseline."""
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
        """The newest attempt, which determines the rollout's status; None before the first."""
        return self.attempts[-1] if self.attempts else None

    @property
    def thinking_tags(self) -> tuple[str, ...]:
        """The tags of thinking in the answers of this run's models: ``capture.thinking_tags``."""
        return tuple(self.metadata.get(THINKING_TAGS) or DEFAULT_TAGS)

    def prompt_budget(self, agent: str) -> int | None:
        """Return the most tokens of an agent's prompt: the first match in ``prompt_budgets``."""
        budgets: dict[str, int] = self.metadata.get(PROMPT_BUDGETS) or {}
        fitting = (tokens for name, tokens in budgets.items() if agent_matches(name, agent))
        return next(fitting, None)

    def trains(self, agent: str | None) -> bool:
        """Return whether the run trains the agent: `agents` names it, its policy is trainable."""
        capture: dict[str, Any] = self.metadata.get(CAPTURE) or {}
        if not agent or agent.startswith(RESERVED_PREFIX):
            return False
        if not any_matches(capture.get("agents", ()), agent):
            return False
        policies: list[tuple[str, bool]] = capture.get("policies", [])
        return next((each for pattern, each in policies if agent_matches(pattern, agent)), False)

    def may_send_to(self, host: str) -> bool:
        """Return whether ``capture.elsewhere`` allows requests of untrained agents to a host."""
        capture: dict[str, Any] = self.metadata.get(CAPTURE) or {}
        if capture.get("elsewhere") != "refuse":
            return True
        allowed: list[str] = capture.get("allow_hosts", [])
        return any_matches(allowed, host)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout that a worker has claimed, with its new attempt."""

    rollout: Rollout
    attempt: Attempt


class RolloutQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of `Store.rollouts`; empty fields do not filter. Results are in id (time) order."""

    ids: tuple[str, ...] = ()
    run_id: str | None = None
    group_id: str | None = None
    mode: Mode | None = None
    statuses: tuple[RolloutStatus, ...] = ()
    after_id: str | None = None
    """Cursor of the next page: only rollouts with a greater id are returned."""
    limit: int = 1000


OVERFLOW: Final = "context_length_exceeded"
"""OpenAI's error code."""

_WORDS: Final = re.compile(
    # wordings of OpenAI and of inference servers
    r"(?:maximum|model's) (?:context|model) length"
    r"|exceeds? (?:the |your )?(?:model's |available )?context (?:window|size|length)"
    # error codes and types
    rf"|{OVERFLOW}|exceed_context_size_error|ContextWindowExceededError"
    r"|`inputs` (?:tokens \+ `max_new_tokens` )?must (?:be|have)"
    r"|prompt is too long: \d+ tokens",
    re.IGNORECASE,
)


def says_overflow(text: str) -> bool:
    """Return whether an error's text reports a prompt longer than the model's context."""
    return _WORDS.search(text) is not None


def overflowed(calls: Iterable[ModelCall]) -> dict[str, str]:
    """Return trainable agents of which no prompt fit, with the error that they received."""
    answered: set[str] = set()
    refused: dict[str, str] = {}
    for call in calls:
        if call.complete and not call.superseded:
            answered.add(call.agent)
        elif call.trainable and says_overflow(call.error):
            refused.setdefault(call.agent, call.error)
    return {agent: said for agent, said in refused.items() if agent not in answered}


def none_fit(agents: Mapping[str, str]) -> Failure:
    """Return the failure of an attempt that treated the refusal as an answer."""
    agent, said = next(iter(agents.items()))
    kind = ContextOverflowError
    return Failure(
        kind=FailureKind.CONTEXT_OVERFLOW,
        message=f"No prompt of agent {agent!r} fit its model's context ({said}): cut its history "
        f"with agl_budget.PromptBudget, or raise the engine's max_model_len",
        type=f"{kind.__module__}.{kind.__qualname__}",
    )


def failure_by_calls(failure: Failure, calls: Iterable[ModelCall]) -> Failure:
    """Return the agent's failure, as an overflow if the last call's error reports one.

    The agent or its framework may have dropped the text of that error.
    """
    if failure.kind is not FailureKind.AGENT:
        return failure
    kept = (call for call in calls if not call.superseded)
    last = max(kept, key=lambda call: call.ended_ns, default=None)
    if last is None or last.complete or not says_overflow(last.error):
        return failure
    message = f"{last.error} (the agent raised: {failure.message})"
    return replace(failure, kind=FailureKind.CONTEXT_OVERFLOW, message=message)

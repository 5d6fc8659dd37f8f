"""Joined calls as token paths: what an algorithm learns from."""

from __future__ import annotations

import msgspec
from msgspec.structs import force_setattr

from agl_core.types.packed import Floats, Ints, pack_floats, pack_ints
from agl_core.types.rollout import FailureKind


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """An image that a call showed, and where its tokens are in the prompt."""

    url: str
    """Its content, as a ``data:`` URL."""
    start: int
    """Index of its first token."""
    length: int
    """Number of its tokens, each of which is the same placeholder."""


class Triplet(msgspec.Struct, frozen=True, kw_only=True):
    """(prompt, response, reward) of one call of one agent."""

    call_id: str
    rollout_id: str
    attempt_id: str
    agent: str
    agent_run_id: str
    ordinal: int
    """Index of the call among this agent's calls in the attempt, in causal order."""
    run_ordinal: int
    """Index of the agent run among this agent's runs in the attempt."""
    choice: int
    """Index of the choice that these tokens are."""
    continued: bool
    """The conversation continued with this choice, or the call had only one."""
    prompt_ids: Ints
    response_ids: Ints
    logprobs: Floats
    """Behaviour log-probabilities, one per response id."""
    logprobs_mode: str
    temperature: float
    finish_reason: str | None
    policy: str
    policy_version: int
    response_text: str = ""
    images: list[Image] = []
    """In the prompt, in its order."""
    alias: str = ""
    """What `agl.alias` calls the agent in this attempt; empty without one."""
    reward: float | None = None
    """Sum of the rewards aimed at this very call or choice; None when there were none."""

    def __post_init__(self) -> None:
        if (prompt_ids := pack_ints(self.prompt_ids)) is not self.prompt_ids:
            force_setattr(self, "prompt_ids", prompt_ids)
        if (response_ids := pack_ints(self.response_ids)) is not self.response_ids:
            force_setattr(self, "response_ids", response_ids)
        if (logprobs := pack_floats(self.logprobs)) is not self.logprobs:
            force_setattr(self, "logprobs", logprobs)


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """One agent's ordered calls in one attempt as a root-to-leaf token path.

    Edited history starts a new path, so an agent may have several in one attempt. Every stream
    has one entry per token of `token_ids`.
    """

    rollout_id: str
    attempt_id: str
    group_id: str
    task_id: str
    agent: str
    policy: str
    token_ids: Ints
    call_index: Ints
    """Index into `calls` of the call that sampled the token; -1 for context, never trained."""
    logprobs: Floats
    """Behaviour log-probabilities; 0.0 for context."""
    calls: list[Triplet]
    """The calls whose responses lie on this path, root first; each call lies on one path only."""

    def __post_init__(self) -> None:
        if (token_ids := pack_ints(self.token_ids)) is not self.token_ids:
            force_setattr(self, "token_ids", token_ids)
        if (call_index := pack_ints(self.call_index)) is not self.call_index:
            force_setattr(self, "call_index", call_index)
        if (logprobs := pack_floats(self.logprobs)) is not self.logprobs:
            force_setattr(self, "logprobs", logprobs)


class AgentReturn(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent earned in one attempt, by the unit the rewards named."""

    rollout_id: str
    attempt_id: str
    agent: str
    value: float
    """Attempt-level plus agent-level rewards, channels weighted and summed."""
    runs: dict[str, float] = {}
    """Agent run id to the rewards aimed at that run."""
    calls: dict[str, float] = {}
    """Call id to the rewards aimed at that call (its continued choice)."""
    choices: dict[str, dict[int, float]] = {}
    """Call id to choice index to the rewards that named the choice."""
    channels: dict[str, float] = {}
    """Unweighted sums per channel, for reports."""
    given: tuple[str, ...] = ()
    """Channels of weight other than 0 whose rewards `value` sums. Within a group all attempts have
    the same: one that lacks a channel is left out, for 0 was not given."""
    unrewarded: bool = False
    """No reward reached the agent: `value` is no return, and the attempt is left out of its group."""
    failure: FailureKind | None = None
    """Set when the attempt failed and the failure policy gave it a penalty."""


class TrajectoryGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of one task for one agent: the unit of a baseline.

    `returns` and `trajectories` run in parallel, one entry per attempt, ordered by rollout id.
    `agent` is an alias where the agents of an attempt have one: then each agent of that alias is
    an entry of its own.
    """

    group_id: str
    task_id: str
    agent: str
    policy: str
    returns: list[AgentReturn]
    trajectories: list[list[Trajectory]]


class CallCredit(msgspec.Struct, frozen=True, kw_only=True):
    """Advantage and loss weight of every response token of one choice of one call."""

    call_id: str
    choice: int
    advantages: list[float]
    """One per response token."""
    weights: list[float]
    """One per response token; 0.0 trains nothing."""

"""Joined calls as paths of tokens, with their returns and credits, and the batches of them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import force_setattr

from agl_core.types._packed import Floats, Ints, pack_floats, pack_ints
from agl_core.types.rollout import FailureKind


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """An image in a prompt, with the range of its tokens."""

    url: str
    """The image as a ``data:`` URL."""
    start: int
    """Index of the first token."""
    length: int
    """Number of tokens; all are the same placeholder."""


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
    """Index of the choice with these tokens."""
    continued: bool
    """Whether the conversation continued with this choice, or the call had only one."""
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
    """The images of the prompt, in order."""
    alias: str = ""
    """The agent's alias in this attempt; empty without one."""
    reward: float | None = None
    """Sum of the rewards for this call or choice; None without a reward."""

    def __post_init__(self) -> None:
        if (prompt_ids := pack_ints(self.prompt_ids)) is not self.prompt_ids:
            force_setattr(self, "prompt_ids", prompt_ids)
        if (response_ids := pack_ints(self.response_ids)) is not self.response_ids:
            force_setattr(self, "response_ids", response_ids)
        if (logprobs := pack_floats(self.logprobs)) is not self.logprobs:
            force_setattr(self, "logprobs", logprobs)


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """One agent's ordered calls in one attempt as a root-to-leaf token path.

    A break starts a new path, so an agent may have several in one attempt. `call_index` and
    `logprobs` have one entry per token of `token_ids`.
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
    """The calls with their response on this path, root first; each call is on only one path."""

    def __post_init__(self) -> None:
        if (token_ids := pack_ints(self.token_ids)) is not self.token_ids:
            force_setattr(self, "token_ids", token_ids)
        if (call_index := pack_ints(self.call_index)) is not self.call_index:
            force_setattr(self, "call_index", call_index)
        if (logprobs := pack_floats(self.logprobs)) is not self.logprobs:
            force_setattr(self, "logprobs", logprobs)


class AgentReturn(msgspec.Struct, frozen=True, kw_only=True):
    """The return of one agent in one attempt, by target of the rewards."""

    rollout_id: str
    attempt_id: str
    agent: str
    value: float
    """Sum of attempt-level and agent-level rewards, weighted by channel."""
    runs: dict[str, float] = {}
    """Agent run id to the rewards for that run."""
    calls: dict[str, float] = {}
    """Call id to the rewards for that call (its continued choice)."""
    choices: dict[str, dict[int, float]] = {}
    """Call id to choice index to the rewards for that choice."""
    channels: dict[str, float] = {}
    """Unweighted sums per channel, for reports."""
    given: tuple[str, ...] = ()
    """Channels in `value` with a weight other than 0. All attempts of a group have the same
    channels: an attempt that lacks one is left out, because a missing reward is not 0."""
    unrewarded: bool = False
    """Whether the agent got no reward: `value` is then not a return, and the attempt is left out of
    its group."""
    failure: FailureKind | None = None
    """Set if the attempt failed and the failure policy gave it a penalty."""


class TrajectoryGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of one task for one agent: the unit of a baseline.

    `returns` and `trajectories` have one entry per attempt, ordered by rollout id. If agents have
    an alias, `agent` is the alias and each agent with that alias has its own entry.
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
    """One per response token; 0.0 excludes the token from training."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Every unique token once, and one loss term per sampled token.

    Tokens are nodes of a forest: calls of any attempt, agent or choice that share a prefix share
    its nodes. Node order is depth first, so a parent precedes its children and every subtree is one
    contiguous range. A loss term predicts `targets[j]` from node `nodes[j]`, the token before it;
    one node may have several terms. A sampled token is a node only if a token follows it.

    Arrays are plain `array.array`: ``"i"`` for ids and indices, ``"f"`` for reals; a trainer views
    them without a copy. N nodes, M loss terms, C sampled sequences.
    """

    policy: str
    step: int
    tokens: array[int]
    """(N,) token ids; an id below 0 is part of an image: -1 - i belongs to ``images[i]``."""
    parents: array[int]
    """(N,) index of the parent node, -1 for a root."""
    positions: array[int]
    """(N,) depth from the root: the position id."""
    nodes: array[int]
    """(M,) node whose output predicts the target."""
    targets: array[int]
    """(M,) sampled token id."""
    advantages: array[float]
    """(M,)"""
    weights: array[float]
    """(M,) weight of the term in the loss; the loss is divided by the sum of the weights."""
    logprobs: array[float]
    """(M,) behaviour log-probability of the target, after temperature."""
    temperatures: array[float]
    """(M,) sampling temperature of the target."""
    calls: array[int]
    """(M,) index into `call_ids`: the sequence of a sequence-level ratio."""
    call_ids: tuple[str, ...]
    """(C,) one entry per trained choice: the choices of an ``n > 1`` call repeat its id."""
    versions: tuple[int, ...]
    """(C,) policy version that sampled each call; staleness is the current version minus this."""
    agents: tuple[str, ...]
    """(C,) agent of each call."""
    groups: array[int]
    """(C,) index of each call's group, 0, 1, ...: minibatches never split a group."""
    images: tuple[str, ...] = ()
    """Content of each image as a ``data:`` URL. Different images never share a node."""
    stats: dict[str, float] = field(default_factory=dict[str, float])
    """Counts for reports: groups, attempts, calls, tokens_flat, tokens_unique, ..."""

"""Records of an attempt: spans in the form of OpenTelemetry, exact model calls, rewards; scopes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal, Self, SupportsFloat, cast

import msgspec
from msgspec.structs import force_setattr

from agl_core.errors import RewardError
from agl_core.thinking import DEFAULT_TAGS, Part, split_thinking
from agl_core.types._packed import Floats, Ints, pack_floats, pack_ints

ScopeKind = Literal["call", "agent", "tool", "operation"]
"""What the code inside a scope does."""


@dataclass(slots=True, eq=False)
class Scope:
    """One open scope; `parent` links to the scope around it, a context variable to the current one.

    A ``call`` scope expects exactly one logical request, an ``agent`` scope any number. A ``tool``
    scope suspends the agent around it: a model call inside a tool has no agent unless a scope
    inside the tool names one. An ``operation`` scope does not change the agent.
    """

    kind: ScopeKind
    span_id: str
    """Parent of the spans inside this scope."""
    agent: str | None = None
    """Agent of the calls inside; None if there is no agent."""
    agent_run_id: str | None = None
    trainable: bool = True
    parent: Scope | None = None
    call_id: str | None = None
    """``call`` scopes: minted by the first send."""
    body_hash: int | None = None
    """``call`` scopes: hash of the last sent body, to recognise an SDK's retry."""
    unanswered: bool = False
    """``call`` scopes: whether the last send failed, so that the next one is the same call."""
    closed: bool = False
    """Whether it has ended; it may still be current in another task or thread."""


class RewardTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a reward; without any field, the whole attempt.

    At most one of `call`, `agent_run` and `agent` is set. Exception: `agent` with `agent_run` names
    the agent of the run, as agents may share a run id. `choice` needs `call`.
    """

    call: str | None = None
    """Call id."""
    choice: int | None = None
    """Index of the choice of an ``n > 1`` call."""
    agent_run: str | None = None
    agent: str | None = None

    @property
    def units(self) -> list[str]:
        """The fields set among `call`, `agent` and `agent_run`; an agent with its run is one."""
        agent = self.agent if self.agent_run is None else None
        units = {"call": self.call, "agent": agent, "agent_run": self.agent_run}
        return [name for name, unit in units.items() if unit is not None]

    @property
    def ambiguous(self) -> bool:
        """Whether it names several units, or a choice without a call."""
        return len(self.units) > 1 or (self.choice is not None and self.call is None)

    def check(self, giver: str) -> None:
        """Check that the target is one unit.

        Args:
            giver: Who gave the reward, for the message.

        Raises:
            RewardError: it is ambiguous.
        """
        if self.ambiguous:
            raise RewardError(
                f"{giver} aims at {self}: name one of call, agent_run and agent, or give one "
                f"reward for each; a choice needs its call"
            )


ATTEMPT = RewardTarget()
"""The attempt as a whole: the target of a reward that names nothing else."""


class Reward(msgspec.Struct, frozen=True, kw_only=True):
    """One finite number on one channel for one target, and the reason for it.

    Several rewards for one target and channel are summed; each keeps its own reason.
    """

    value: float
    channel: str = "main"
    target: RewardTarget = ATTEMPT
    source: str = ""
    """The reward function's name, for reports; empty for ``emit_reward``."""
    why: str = ""
    """The reason for the value, for people and prompt optimisers; empty if none was given."""


class Score(float):
    """A reward with the reason for it, such as ``Score(0.2, "the price is missing")``.

    A score is a float: it compares, sorts and calculates as its number, and the result of a
    calculation is a plain float without the reason. A reward function may return it wherever it may
    return a number, and `emit_reward` takes it.
    """

    __slots__ = ("why",)

    def __new__(cls, value: SupportsFloat, why: str = "") -> Self:
        """Make a score.

        Args:
            value: A finite number or a boolean.
            why: The reason; empty for none. A record keeps the first 16,384 characters and counts
                a longer text as `truncated_value`.

        Raises:
            RewardError: the value is not one finite number, or the reason is not text.
        """
        number = finite_number(value)
        if number is None or not isinstance(cast("Any", why), str):
            raise RewardError(f"Score({value!r:.80}, {why!r:.80}): give a finite number and a text")
        score = super().__new__(cls, number)
        score.why = why
        return score

    def __repr__(self) -> str:
        return f"Score({float(self)!r}, {self.why!r})"

    __str__ = float.__repr__


def finite_number(value: Any) -> float | None:
    """Return a reward as a number; None if it is not exactly one finite number.

    True is 1.0 and False is 0.0. Any value that converts to one float is valid, including values of
    array libraries; text is not.
    """
    if not isinstance(value, SupportsFloat):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return number if math.isfinite(number) else None


class SpanKind(StrEnum):
    """Kind of a span."""

    AGENT = "agent"
    LLM = "llm"
    TOOL = "tool"
    REWARD = "reward"
    MESSAGE = "message"
    """A point in time: a message, an object, an exception, a capture error."""
    OPERATION = "operation"
    """A named part of the user's program; also a framework's graph or node."""


ID_LIMIT: Final = 2**31
"""Upper bound of token ids, exclusive: training stores them as 32-bit integers."""

SpanStatus = Literal["unset", "ok", "error"]
"""Status of a span, as in OpenTelemetry."""

LogprobsMode = Literal["processed", "raw", "none"]
"""``processed``: after temperature; ``raw``: before temperature; ``none``: not returned."""


_CONSTRAINTS: Final[Mapping[str, Any]] = {
    # OpenAI
    "response_format": {"type": "text"},
    "tool_choice": ("auto", "none"),
    "function_call": ("auto", "none"),
    # inference servers
    **dict.fromkeys(("structured_outputs", "structural_tag", "regex", "ebnf", "json_schema")),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar")),
    **dict.fromkeys(("bad_words", "min_tokens", "allowed_token_ids", "ignore_eos")),
    **dict.fromkeys(("logits_processors", "custom_logit_processor", "use_beam_search")),
    **dict.fromkeys(("thinking_token_budget", "repetition_detection", "no_repeat_ngram_size")),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "mirostat", "mirostat_mode", "top_a")),
    **dict.fromkeys(("xtc_probability", "dry_multiplier", "dynatemp_range")),
    "typical_p": 1,
    "tfs_z": 1,
    "top_n_sigma": -1,
    "guidance_scale": 1,
}
"""Request fields that restrict which tokens may be sampled, with the values that do not restrict;
empty values and 0 do not restrict either."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters under which a call was sampled, as sent to the backend."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    n: int = 1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    extra: dict[str, Any] = {}
    """Every other sampling field of the request, verbatim."""

    @property
    def constraints(self) -> list[str]:
        """Names of the set fields that restrict which tokens may be sampled.

        The log-probabilities of such an answer are not those of the unrestricted model.
        """
        return sorted(
            name
            for name, value in self.extra.items()
            if value and name in _CONSTRAINTS and not _neutral(value, _CONSTRAINTS[name])
        )


def _neutral(value: Any, neutral: Any) -> bool:
    return value in neutral if isinstance(neutral, tuple) else value == neutral


class Choice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sampled answer, with exactly the tokens that the engine sampled.

    Lists of ids and log-probabilities are packed into arrays.

    Raises:
        ValueError: an id is not a 32-bit integer, or a log-probability is not a number.
    """

    index: int = 0
    token_ids: Ints = msgspec.field(default_factory=pack_ints)
    """Sampled ids in order, including the end-of-sequence token; empty if not recorded."""
    logprobs: Floats = msgspec.field(default_factory=pack_floats)
    """One per token id, natural log; see `ModelCall.logprobs_mode`."""
    text: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = []
    """In OpenAI's form: ``{"id", "type", "function": {"name", "arguments"}}``."""
    function_call: dict[str, Any] | None = None
    """The older form of one call: ``{"name", "arguments"}``."""
    refusal: str = ""
    """The model's text when it refuses to answer."""
    audio: str = ""
    """Transcript of a spoken answer, ``[audio]`` without one; the sound is not recorded."""
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        if (token_ids := pack_ints(self.token_ids)) is not self.token_ids:
            force_setattr(self, "token_ids", token_ids)
        if (logprobs := pack_floats(self.logprobs)) is not self.logprobs:
            force_setattr(self, "logprobs", logprobs)


class ModelCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The gateway's record of one logical request: the only source of training tokens.

    A list of prompt ids is packed into an array.

    Raises:
        ValueError: an id is not a 32-bit integer.
    """

    id: str
    """Call id, minted before the request is sent."""
    rollout_id: str
    attempt_id: str
    agent: str
    agent_run_id: str = ""
    """Empty if the client could not distinguish the runs of one agent."""
    alias: str = ""
    """The agent's alias in this attempt; empty without one."""
    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    sampling: Sampling = Sampling()
    prompt_token_ids: Ints = msgspec.field(default_factory=pack_ints)
    choices: list[Choice] = []
    logprobs_mode: LogprobsMode = "none"
    response_id: str = ""
    model: str = ""
    """The model name in the client's request."""
    policy: str = ""
    policy_version: int = 0
    image_token: int | None = None
    """Placeholder id for each part of an image in the prompt; None if unknown."""
    trainable: bool = True
    """False for frozen policies, external models and scopes with ``trainable=False``."""
    streamed: bool = False
    complete: bool = False
    """Whether the answer reached its end (finish reason and last ids were forwarded)."""
    answer_bytes: int = 0
    """Bytes sent to the client up to the answer's end; 0 for an answer without one."""
    tries: int = 1
    """Number of tries of this call; the record is of the last one."""
    superseded: bool = False
    """Whether a later try of the call replaces this record."""
    status_code: int = 200
    error: str = ""
    started_ns: int = 0
    """Unix nanoseconds, as all ``*_ns``."""
    first_token_ns: int | None = None
    ended_ns: int = 0
    thinking_tags: tuple[str, ...] = DEFAULT_TAGS
    """The tags of thinking in the answers of this run's models; see `agl_core.thinking`."""

    def __post_init__(self) -> None:
        if (prompt_token_ids := pack_ints(self.prompt_token_ids)) is not self.prompt_token_ids:
            force_setattr(self, "prompt_token_ids", prompt_token_ids)

    @property
    def known_as(self) -> str:
        """The alias, or the agent's name without one; policies, selection and baselines use it."""
        return self.alias or self.agent

    @property
    def parts(self) -> list[tuple[Part, ...]]:
        """Thinking and text of each choice, separately; every access parses the raw text again."""
        tags = self.thinking_tags
        return [
            split_thinking(choice.text, reasoning=choice.reasoning, tags=tags)
            for choice in self.choices
        ]


class Span(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One recorded part of an attempt.

    Order within an attempt is `sequence`, then `start_ns`, then `id`. Token ids are in `call`,
    never in `attributes`.
    """

    id: str
    rollout_id: str
    attempt_id: str
    kind: SpanKind
    name: str
    parent_id: str | None = None
    agent: str | None = None
    """Nearest enclosing agent."""
    agent_run_id: str | None = None
    sequence: int = 0
    start_ns: int = 0
    end_ns: int = 0
    status: SpanStatus = "unset"
    error: str = ""
    attributes: dict[str, Any] = {}
    """JSON values under the names of `agl_core.semconv`."""
    call_id: str | None = None
    """Of LLM spans: the id that joins the client's span (structure) and the gateway's (tokens)."""
    call: ModelCall | None = None
    """Of LLM spans that the gateway wrote."""
    reward: Reward | None = None
    """Of reward spans."""

    @property
    def order(self) -> tuple[int, int, str]:
        """Sort key of the stable order within an attempt."""
        return (self.sequence, self.start_ns, self.id)


class Ingest(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of spans of a batch that were stored or not."""

    accepted: int = 0
    duplicate: int = 0
    """Already stored under the same id, by an earlier try of the request."""
    late: int = 0
    """Refused because their attempt had ended."""

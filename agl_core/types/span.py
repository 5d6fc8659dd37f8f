"""What happened inside an attempt: OpenTelemetry-shaped spans, and the exact model call."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import force_setattr

from agl_core.thinking import DEFAULT_TAGS, Part, split_thinking
from agl_core.types.packed import Floats, Ints, pack_floats, pack_ints
from agl_core.types.reward import Reward


class SpanKind(StrEnum):
    """What a span describes."""

    AGENT = "agent"
    LLM = "llm"
    TOOL = "tool"
    REWARD = "reward"
    MESSAGE = "message"
    """A point in time: a message, an object, an exception, a capture error."""
    OPERATION = "operation"
    """A named piece of the user's program; also a framework's graph or node."""


ID_LIMIT: Final = 2**31
"""Token ids are 0 or above and below it: training keeps them as 32-bit integers."""

SpanStatus = Literal["unset", "ok", "error"]

LogprobsMode = Literal["processed", "raw", "none"]
"""``processed``: after temperature; ``raw``: of the untempered logits; ``none``: not given."""


_CONSTRAINTS: Final[Mapping[str, Any]] = {
    # OpenAI
    "response_format": {"type": "text"},
    "tool_choice": ("auto", "none"),
    "function_call": ("auto", "none"),
    # vLLM
    "structured_outputs": None,
    "guided_json": None,
    "guided_regex": None,
    "guided_choice": None,
    "guided_grammar": None,
    "structural_tag": None,
    "bad_words": None,
    "min_tokens": None,
    "allowed_token_ids": None,
    "ignore_eos": None,
    "logits_processors": None,
    "use_beam_search": None,
    "thinking_token_budget": None,
    "repetition_detection": None,
    # SGLang
    "regex": None,
    "ebnf": None,
    "json_schema": None,
    "custom_logit_processor": None,
    # llama.cpp and text-generation-inference
    "grammar": None,
    "typical_p": 1,
    "tfs_z": 1,
    "top_a": None,
    "top_n_sigma": -1,
    "epsilon_cutoff": None,
    "eta_cutoff": None,
    "mirostat": None,
    "mirostat_mode": None,
    "xtc_probability": None,
    "dry_multiplier": None,
    "dynatemp_range": None,
    "no_repeat_ngram_size": None,
    "guidance_scale": 1,
}
"""Fields by which a request restricts which tokens may be sampled, with values (in addition to empty ones
and 0) that restrict nothing."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
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
        """Names of the fields that restrict which tokens may be sampled.

        The log-probabilities of such an answer are not those of the model's own distribution.
        """
        return sorted(
            name
            for name, value in self.extra.items()
            if value and name in _CONSTRAINTS and not _neutral(value, _CONSTRAINTS[name])
        )


def _neutral(value: Any, neutral: Any) -> bool:
    return value in neutral if isinstance(neutral, tuple) else value == neutral


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One sampled answer, with exactly the tokens the engine sampled.

    Lists given for ids and log-probabilities are packed into arrays.

    Raises:
        ValueError: they are no 32-bit integers, or no numbers.
    """

    index: int = 0
    token_ids: Ints = msgspec.field(default_factory=pack_ints)
    """Sampled ids in order, the end-of-sequence token included; empty when not captured."""
    logprobs: Floats = msgspec.field(default_factory=pack_floats)
    """One per token id, natural log; see `ModelCall.logprobs_mode`."""
    text: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = []
    """In wire form: ``{"id", "type", "function": {"name", "arguments"}}``."""
    function_call: dict[str, Any] | None = None
    """The older form of one call: ``{"name", "arguments"}``."""
    refusal: str = ""
    """Why the model would not answer."""
    audio: str = ""
    """Transcript of a spoken answer, ``[audio]`` where there is none; its sound is not kept."""
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        if (token_ids := pack_ints(self.token_ids)) is not self.token_ids:
            force_setattr(self, "token_ids", token_ids)
        if (logprobs := pack_floats(self.logprobs)) is not self.logprobs:
            force_setattr(self, "logprobs", logprobs)


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway saw of one logical request: the only source of training tokens.

    A list given for the prompt's ids is packed into an array.

    Raises:
        ValueError: they are no 32-bit integers.
    """

    id: str
    """Call id, minted before the request left."""
    rollout_id: str
    attempt_id: str
    agent: str
    agent_run_id: str = ""
    """Empty when the caller could not distinguish the runs of one agent."""
    alias: str = ""
    """What `agl.alias` calls the agent in this attempt; empty without one."""
    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    sampling: Sampling = Sampling()
    prompt_token_ids: Ints = msgspec.field(default_factory=pack_ints)
    choices: list[Choice] = []
    logprobs_mode: LogprobsMode = "none"
    response_id: str = ""
    model: str = ""
    """The model name the client asked for."""
    policy: str = ""
    policy_version: int = 0
    image_token: int | None = None
    """What stands in the prompt for each part of an image; None where this is not known."""
    trainable: bool = True
    """False for frozen policies, external models and scopes with ``trainable=False``."""
    streamed: bool = False
    complete: bool = False
    """The answer reached its end (finish reason and last ids forwarded)."""
    answer_bytes: int = 0
    """Bytes that the client was sent up to the answer's end; 0 where it has none."""
    tries: int = 1
    """Sends of this logical request; the record is the last one."""
    superseded: bool = False
    """An earlier try of a call whose later try is the record."""
    status_code: int = 200
    error: str = ""
    started_ns: int = 0
    """Unix nanoseconds, as are all ``*_ns``."""
    first_token_ns: int | None = None
    ended_ns: int = 0
    thinking_tags: tuple[str, ...] = DEFAULT_TAGS
    """What this run's models write their thinking in; see `agl_core.thinking`."""

    def __post_init__(self) -> None:
        if (prompt_token_ids := pack_ints(self.prompt_token_ids)) is not self.prompt_token_ids:
            force_setattr(self, "prompt_token_ids", prompt_token_ids)

    @property
    def known_as(self) -> str:
        """Name that policies, selection and baselines go by: the alias, else the agent's own."""
        return self.alias or self.agent

    @property
    def parts(self) -> list[tuple[Part, ...]]:
        """Thinking and text of each choice, separately; parsed from the raw text each time."""
        tags = self.thinking_tags
        return [
            split_thinking(choice.text, reasoning=choice.reasoning, tags=tags)
            for choice in self.choices
        ]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded piece of an attempt.

    Order within an attempt is `sequence`, then `start_ns`, then `id`. Token ids never go into
    `attributes`; they live in `call`.
    """

    id: str
    rollout_id: str
    attempt_id: str
    kind: SpanKind
    name: str
    parent_id: str | None = None
    agent: str | None = None
    """Nearest enclosing agent; an LLM span always names one."""
    agent_run_id: str | None = None
    sequence: int = 0
    start_ns: int = 0
    end_ns: int = 0
    status: SpanStatus = "unset"
    error: str = ""
    attributes: dict[str, Any] = {}
    """JSON values under the names of `agl_core.semconv`."""
    call_id: str | None = None
    """LLM spans: the id shared by the client's span (structure) and the gateway's (tokens)."""
    call: ModelCall | None = None
    """LLM spans written by the gateway."""
    reward: Reward | None = None
    """Reward spans."""

    @property
    def order(self) -> tuple[int, int, str]:
        """Sort key of the one stable order within an attempt."""
        return (self.sequence, self.start_ns, self.id)


class Ingest(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch of spans; nothing is lost in silence."""

    accepted: int = 0
    duplicate: int = 0
    """Already stored under the same id: a retried request."""
    late: int = 0
    """For attempts that had ended: refused and counted."""

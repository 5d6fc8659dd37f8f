"""Chat completion requests: parse the client's request and prepare the one for the backend."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agl_core.interfaces import JsonObjects, read_body
from agl_core.text import exact_bytes
from agl_core.types import Sampling

PATH: Final = "/chat/completions"
"""Path below ``/v1``."""
_TRANSPORT: Final = frozenset(
    {
        "messages",
        "tools",
        "model",
        "stream",
        "stream_options",
        "user",
        "metadata",
        "store",
        "return_token_ids",
        "logprobs",
        "top_logprobs",
    }
)
_DELIVERY: Final = frozenset({"stream", "stream_options"})
_SAMPLING: Final = frozenset(
    {"temperature", "top_p", "max_tokens", "max_completion_tokens", "n", "seed", "stop"}
)
FINISH_REASONS: Final = frozenset(
    {"stop", "length", "tool_calls", "function_call", "content_filter"}
)
"""Finish reasons of a completed answer; any other means that the backend aborted it."""
_NEUTRAL: Final = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_p": 0.0,
}

_encoder = msgspec.json.Encoder()
_canonical = msgspec.json.Encoder(order="deterministic")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Typed(msgspec.Struct):
    """The fields that the gateway uses; all others are forwarded unchanged."""

    messages: list[dict[str, Any]]
    model: str = ""
    tools: list[dict[str, Any]] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: int | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None


_typed = msgspec.json.Decoder(_Typed)


class Wants(msgspec.Struct, frozen=True):
    """The optional fields that the client requested; the others are removed from its answer."""

    token_ids: bool
    logprobs: bool
    usage: bool
    """Applies to streams; other answers always have the usage."""

    @property
    def everything(self) -> bool:
        return self.token_ids and self.logprobs and self.usage


class RequestChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to a request before it is sent to the backend."""

    model: str
    """The model's name at the backend."""
    capture: bool
    """Request token ids, log-probabilities and usage, and set the sampling defaults explicitly."""
    seed: int | None = None
    """Used if the client sent no seed."""
    replace_seed: bool = False
    """Use `seed` even if the client sent one: equal seeds make the samples of a group equal."""
    temperature: float | None = None
    """Replaces the client's temperature."""
    max_tokens: int | None = None
    """Upper limit of the client's ``max_tokens``."""


class ChatRequest:
    """A chat request: all `fields` as raw JSON, and the ones that the gateway uses as values."""

    __slots__ = ("_asked", "_extra", "_typed", "fields", "wants")

    def __init__(self, body: bytes) -> None:
        """Parse a body.

        Raises:
            Problem: 400; the body is not a chat request. The message names the invalid field.
        """
        read_body(body, self._read, what="chat request")
        typed = self._typed
        self.wants = Wants(
            token_ids=bool(typed.return_token_ids),
            logprobs=bool(typed.logprobs),
            usage=bool((typed.stream_options or {}).get("include_usage")),
        )

    def _read(self, body: bytes) -> None:
        self.fields = _fields.decode(body)
        self._typed = self._asked = _typed.decode(body)
        names = self.fields.keys() - _TRANSPORT - _SAMPLING
        self._extra = {name: msgspec.json.decode(self.fields[name]) for name in sorted(names)}

    @property
    def model(self) -> str:
        return self._typed.model

    @property
    def stream(self) -> bool:
        return bool(self._typed.stream)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self._typed.messages

    @property
    def tools(self) -> list[dict[str, Any]]:
        return self._typed.tools or []

    @property
    def choices(self) -> int:
        return self._typed.n or 1

    @property
    def seed(self) -> int | None:
        return self._typed.seed

    @property
    def rewritten(self) -> bool:
        return self._typed is not self._asked

    def rewrite(self, messages: JsonObjects, tools: JsonObjects) -> None:
        """Send other messages and tools; fields whose objects are the client's stay as they are."""
        changes = {"messages": messages} if messages is not self.messages else {}
        if tools is not self._typed.tools and (tools or self._typed.tools):
            changes["tools"] = tools
        self._typed = msgspec.structs.replace(self._typed, **changes)
        self.fields |= {name: msgspec.Raw(_encoder.encode(v)) for name, v in changes.items()}
        if not self.tools and "tools" in changes:
            del self.fields["tools"]  # servers refuse an empty list

    def digest(self) -> bytes:
        """Return a digest of the client's messages and tools.

        It does not depend on whitespace, key order and `rewrite`: candidates of a prompt have equal
        seeds.
        """
        content = _canonical.encode((self._asked.messages, self._asked.tools or []))
        return hashlib.sha256(content).digest()

    def whole_digest(self) -> str:
        """Return a digest of all fields except those for streaming.

        It does not depend on whitespace and key order.
        """
        asked = self.fields.keys() - _DELIVERY
        content = {name: msgspec.json.decode(self.fields[name]) for name in asked}
        return hashlib.sha256(_canonical.encode(content)).hexdigest()

    def prepare(self, plan: RequestChanges) -> tuple[bytes, Sampling]:
        """Return the body for the backend, and its sampling parameters."""
        changes: dict[str, Any] = {"model": plan.model}
        typed = self._typed
        if plan.seed is not None and (typed.seed is None or plan.replace_seed):
            changes["seed"] = plan.seed
        if plan.capture:
            changes |= self._capture_fields(plan)
        body = self.fields | {k: msgspec.Raw(_encoder.encode(v)) for k, v in changes.items()}
        return _encoder.encode(body), self._sampling(changes)

    def _capture_fields(self, plan: RequestChanges) -> dict[str, Any]:
        """Return the fields to change in a trained call.

        They always include ``temperature`` and ``top_p``: without them a server may use defaults
        of the model, and the recorded sampling parameters would be wrong.
        """
        typed = self._typed
        changes: dict[str, Any] = {"return_token_ids": True, "logprobs": True}
        if typed.stream:
            changes["stream_options"] = {**(typed.stream_options or {}), "include_usage": True}
        changes["temperature"] = _first(plan.temperature, typed.temperature, 1.0)
        changes["top_p"] = _first(typed.top_p, 1.0)
        if plan.max_tokens is not None:
            changes |= self._capped(plan.max_tokens)
        return changes

    def _capped(self, cap: int) -> dict[str, int]:
        """Return the capped limit under each name that the client used, else ``max_tokens``.

        A negative value means no limit.
        """
        typed = self._typed
        asked = {
            "max_tokens": typed.max_tokens,
            "max_completion_tokens": typed.max_completion_tokens,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        return {
            name: cap if value < 0 else min(value, cap)
            for name, value in (given or {"max_tokens": cap}).items()
        }

    def _sampling(self, changes: Mapping[str, Any]) -> Sampling:
        typed = self._typed
        limits = [
            _first(changes.get("max_tokens"), typed.max_tokens),
            _first(changes.get("max_completion_tokens"), typed.max_completion_tokens),
        ]
        stop = [typed.stop] if isinstance(typed.stop, str) else typed.stop or []
        return Sampling(
            temperature=_first(changes.get("temperature"), typed.temperature, 1.0),
            top_p=_first(changes.get("top_p"), typed.top_p, 1.0),
            max_tokens=min((limit for limit in limits if limit is not None), default=None),
            n=self.choices,
            seed=_first(changes.get("seed"), typed.seed),
            stop=tuple(stop),
            extra=self._extra,
        )


def _first(*values: Any) -> Any:
    for value in values:
        if value is not None:
            return value
    return None


def distortions(sampling: Sampling) -> list[str]:
    """Return the causes why tokens were not sampled from the distribution that a loss assumes."""
    causes: list[str] = []
    if sampling.temperature == 0:
        causes.append("sampling_temperature_zero")
    if sampling.top_p < 1:
        causes.append("sampling_top_p")
    if sampling.extra.get("top_k") not in (None, 0, -1):
        causes.append("sampling_top_k")
    if sampling.extra.get("logit_bias") or any(
        sampling.extra.get(name) not in (None, neutral) for name, neutral in _NEUTRAL.items()
    ):
        causes.append("sampling_penalties")
    if sampling.constraints:
        causes.append("sampling_constrained")
    return causes


def derive_seed(seed: int, *, agent: str, digest: bytes, occurrence: int) -> int:
    """Return the seed of one call, the same in every execution of the same rollout.

    It is the first 31 bits of the sha256 of the rollout's seed, the agent, the digest of messages
    and tools, and the number of earlier equal requests of the agent in the attempt. So it does not
    depend on the order in which parallel agents send their requests.
    """
    text = exact_bytes(f"{seed}\0{agent}\0{digest.hex()}\0{occurrence}")
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") >> 1

"""API dialects that plugins add to the gateway; core has OpenAI chat completions only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec


class TokenDetails(msgspec.Struct):
    """Numbers of tokens of special kinds in a prompt or an answer."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class TokenUsage(msgspec.Struct):
    """``usage`` of a chat completion."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None

    @property
    def stated(self) -> bool:
        """Whether a count is above zero: some servers end a stream with a usage of zeros."""
        return bool(self.prompt_tokens or self.completion_tokens or self.total_tokens)


class ReceivedToolCall(Protocol):
    """The received part of a tool call; every `AnswerDelta` has the same object."""

    position: int
    """Index among the answer's calls, in the order in which they began; -1 for the older
    ``function_call``."""
    id: str
    """Empty if the backend sent no id."""
    name: str
    """Empty until it is known."""
    arguments: list[str]
    """Fragments of the JSON text."""


class AnswerDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The additions of one chunk of a chat completion to the answer, or a whole answer.

    The gateway has parsed it: texts are strings, fields that no client can read are left out.
    """

    id: str = ""
    """Id of the answer."""
    reasoning: str = ""
    content: str = ""
    refusal: str = ""
    transcript: str = ""
    """Transcript of a spoken answer."""
    tool_calls: Sequence[ReceivedToolCall] = ()
    """The tool calls that this chunk extends."""
    finish_reason: str | None = None
    """Why the answer ended; None before its end."""
    usage: TokenUsage | None = None
    """None before the backend sends it."""


class DialectAnswer(Protocol):
    """Encodes one answer in a dialect.

    A streamed answer is the output of each `add`, then of `end` or `fail`. For an answer that is
    not streamed, the gateway calls `add` and `end` and sends only `document`.
    """

    def add(self, delta: AnswerDelta) -> bytes:
        """Encode a chunk as events."""
        ...

    def end(self) -> bytes:
        """Return the last events of a complete answer."""
        ...

    def fail(self, error: Mapping[str, Any]) -> bytes:
        """Return events for a broken answer, on which every client of the dialect raises.

        Args:
            error: ``message`` and, if the backend sent them, ``code``, ``type`` and ``param``.
        """
        ...

    def document(self) -> bytes:
        """Return the whole answer as JSON."""
        ...


Dialect = Callable[[bytes], tuple[bytes, DialectAnswer]]
"""Converts the body of a request: returns the equivalent chat completion request, and the encoder
of its answer in the dialect.

The gateway sends that chat completion request to the backend, with the run's changes, and the
`ModelCall` records it: messages, tools, sampling and choices in the form of chat completions, and
the number of bytes that the client received in its own dialect. Errors have the form that OpenAI's
clients read.

Raises:
    Problem: 400, the body is not a request of the dialect, or needs something that cannot be
        served; the message names the field and the fix.
"""

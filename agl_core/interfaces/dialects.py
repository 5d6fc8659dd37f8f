"""API dialects that plugins add to the gateway, which itself speaks OpenAI chat completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec


class TokenDetails(msgspec.Struct):
    """Which of the tokens of a prompt or an answer were of a special kind."""

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
        """It counts something: some servers end a stream with a usage of zeros."""
        return bool(self.prompt_tokens or self.completion_tokens or self.total_tokens)


class ReceivedToolCall(Protocol):
    """A tool call as far as it has been received; the same object in every `AnswerDelta`."""

    position: int
    """Among the calls of the answer, in the order in which they began; -1 in the older form,
    ``function_call``."""
    id: str
    """Empty where the backend gave none."""
    name: str
    """Empty until it is known."""
    arguments: list[str]
    """Fragments of the JSON text."""


class AnswerDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one chunk of a chat completion adds to the answer, or the answer as a whole.

    The gateway has read it: texts are strings, fields that no client can read are left out.
    """

    id: str = ""
    """Of the answer."""
    reasoning: str = ""
    content: str = ""
    refusal: str = ""
    transcript: str = ""
    """Of speech."""
    tool_calls: Sequence[ReceivedToolCall] = ()
    """Those to which something was added."""
    finish_reason: str | None = None
    """Why the answer ended; None while it has not."""
    usage: TokenUsage | None = None
    """As far as it is known."""


class DialectAnswer(Protocol):
    """Says one answer in a dialect.

    A stream is what `add`, and at last either `end` or `fail`, return. Of an answer that is not
    streamed the client is sent `document` alone, after `add` and `end`.
    """

    def add(self, delta: AnswerDelta) -> bytes:
        """Take a chunk; returns the events that say it."""
        ...

    def end(self) -> bytes:
        """The answer is whole; returns the last events."""
        ...

    def fail(self, error: Mapping[str, Any]) -> bytes:
        """The answer broke off; returns events on which every client of the dialect raises.

        Args:
            error: ``message``, and what else the backend stated: ``code``, ``type``, ``param``.
        """
        ...

    def document(self) -> bytes:
        """The whole answer as JSON."""
        ...


Dialect = Callable[[bytes], tuple[bytes, DialectAnswer]]
"""Reads the body of a request: gives the chat completion request that asks for the same, and what
says its answer in the dialect.

The backend is asked for that chat completion, with what the run changes of it, and the `ModelCall`
records it: messages, tools, sampling and choices as chat completions have them, the number of bytes
that the client was sent of its own dialect. Errors are sent as OpenAI's clients read them.

Raises:
    Problem: 400, the body is no request of the dialect, or asks for what cannot be served; it names
        the field and the fix.
"""

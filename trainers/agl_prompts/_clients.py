"""Calls of an editor model: over HTTP, or of a Python function."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import msgspec
from agl_endpoints import HttpBackend, is_address, retry_after

from agl_core.config import load_object
from agl_core.errors import ConfigError, EngineError
from agl_core.text import decoded, replaced
from agl_prompts._errors import EditorError
from agl_prompts._options import EditorOptions, Role

Message = Mapping[str, Any]

_AGAIN: Final = (408, 429, 500, 502, 503, 504)
"""Statuses after which repeating the request may succeed."""
_ERROR: Final = 400
_TRIES: Final = 3
_PAUSE_S: Final = 0.5
"""Pause before the second try without ``Retry-After``; doubled before the third."""
_LONGEST_PAUSE_S: Final = 60.0
_MAX_SHOWN: Final = 300
_CHARS_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a model."""

    text: str
    tokens: int | None = None
    """Of prompt and answer together; None if the endpoint does not report them."""


class Client(Protocol):
    """One way to call a model."""

    async def answer(
        self, messages: Sequence[Message], role: Role, *, max_tokens: int | None
    ) -> Answer:
        """Return the model's answer.

        Raises:
            EditorError: it did not answer.
        """
        ...

    async def close(self) -> None: ...


def client_of(options: EditorOptions, *, role: Role) -> Client:
    """Return the client of a model; no request is sent.

    Raises:
        ConfigError: the function does not exist, the address is malformed, or the variable of the
            key is not set.
    """
    if options.function:
        return FunctionClient(options.function)
    return EndpointClient(options, role=role)


def estimated_tokens(text: str) -> int:
    """Return the number of tokens of a text at four characters per token, rounded up."""
    return -(-len(text) // _CHARS_PER_TOKEN)


class FunctionClient:
    """Calls a Python function in place of a model; a sync one in a thread."""

    def __init__(self, reference: str) -> None:
        """Load the function.

        Raises:
            ConfigError: it does not exist or cannot be called.
        """
        self._reference = reference
        self._function: Callable[[list[dict[str, Any]], Role], Any] = load_object(reference)
        if not callable(self._function):
            raise ConfigError(f"{reference!r} is not a function (messages, role) -> str")

    async def answer(
        self, messages: Sequence[Message], role: Role, *, max_tokens: int | None
    ) -> Answer:
        del max_tokens  # a function has no such limit
        given = [dict(message) for message in messages]
        try:
            if inspect.iscoroutinefunction(self._function):
                text = await self._function(given, role)
            else:
                text = await asyncio.to_thread(self._function, given, role)
                if inspect.isawaitable(text):
                    text = await text
        except Exception as error:  # a user's function may raise anything
            raise EditorError(
                f"{self._reference!r} raised {type(error).__name__}: {error}"
            ) from error
        if not isinstance(text, str):
            raise EditorError(f"{self._reference!r} returned {text!r:.80}: return a text")
        return Answer(text=text)

    async def close(self) -> None:
        """Do nothing: a function has no connections."""


class EndpointClient:
    """Calls an OpenAI-compatible endpoint.

    A request that got no answer, or one of the statuses 408, 429 and 5xx, is sent up to three times.
    A pause is as long as ``Retry-After`` says; the call fails if that is more than 60 s.
    """

    def __init__(self, options: EditorOptions, *, role: Role) -> None:
        """Read the key.

        Raises:
            ConfigError: the address is malformed, or the variable of the key is not set.
        """
        self._options = options
        if not is_address(options.base_url):
            raise ConfigError(
                f"{role}.base_url = {options.base_url!r}: write http://HOST:PORT/v1 or https://..."
            )
        variable = options.api_key_env
        self._key = os.environ.get(variable, "") if variable else ""
        if variable and not self._key:
            raise ConfigError(
                f"{role}.api_key_env: the environment variable {variable!r} is not set: put the "
                f"key of {options.base_url} there, or leave out api_key_env"
            )
        self._backend = HttpBackend(options.base_url, api_key=self._key)

    async def answer(
        self, messages: Sequence[Message], role: Role, *, max_tokens: int | None
    ) -> Answer:
        del role  # both roles speak the same protocol
        body: dict[str, Any] = {"model": self._options.model, "messages": list(messages)}
        if self._options.temperature is not None:
            body["temperature"] = self._options.temperature
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        return self._read(await self._sent(msgspec.json.encode(_sendable(body))))

    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self._backend.close()

    async def _sent(self, body: bytes) -> str:
        """Return the text of a successful answer; repeat the request if that may help."""
        pause_s = _PAUSE_S
        for number in range(1, _TRIES + 1):
            wait_s: float | None = None
            try:
                status, text, wait_s = await self._post(body)
            except EngineError as error:
                problem = str(error)
            else:
                if status < _ERROR:
                    return text
                problem = self._refusal(status, text)
                if status not in _AGAIN:
                    raise EditorError(problem)
            if wait_s is not None and wait_s > _LONGEST_PAUSE_S:
                raise EditorError(f"{problem}. It asks to wait {wait_s:.0f} s (Retry-After)")
            if number == _TRIES:
                raise EditorError(f"{problem} ({_TRIES} tries)")
            await asyncio.sleep(pause_s if wait_s is None else wait_s)
            pause_s *= 2
        raise AssertionError("unreachable")

    async def _post(self, body: bytes) -> tuple[int, str, float | None]:
        reply = await self._backend.chat(body, headers={}, timeout_s=self._options.timeout_s)
        try:
            content = b"".join([chunk async for chunk in reply.body()])
        finally:
            await reply.close()
        return reply.status, decoded(content), retry_after(reply.headers.get("Retry-After", ""))

    def _refusal(self, status: int, text: str) -> str:
        advice = {
            401: self._key_advice(),
            403: self._key_advice(),
            404: "Check that base_url ends in /v1 and that the model exists. ",
            429: "Lower the rate of calls or raise the limit at the provider. ",
        }.get(status, "")
        return f"{self._options.base_url} answered {status}. {advice}It said: {self._shown(text)}"

    def _key_advice(self) -> str:
        variable = self._options.api_key_env
        if variable is None:
            return "Name the environment variable of its key in api_key_env. "
        return f"Check the key in the environment variable {variable}. "

    def _read(self, text: str) -> Answer:
        try:
            document = json.loads(text)
            message = document["choices"][0]["message"]
            said, finish = message["content"], document["choices"][0].get("finish_reason")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            what = "HTML" if text.lstrip()[:1] == "<" else "no answer of chat completions"
            raise EditorError(
                f"{self._options.base_url} gave {what}: check that base_url ends in /v1. It said: "
                f"{self._shown(text)}"
            ) from None
        if said is not None and not isinstance(said, str):
            raise EditorError(f"{self._options.base_url} gave no text: {self._shown(text)}")
        if finish == "length":
            raise EditorError(
                f"The answer of {self._options.model!r} was cut off at a token limit: raise "
                f"max_tokens or the limit of tokens. It began with: {self._shown(said or '')}",
                tokens=_usage(document) or 0,
            )
        return Answer(text=said or "", tokens=_usage(document))

    def _shown(self, text: str) -> str:
        words = " ".join(text.split())
        if self._key:
            words = words.replace(self._key, "***")
        return words if len(words) <= _MAX_SHOWN else f"{words[:_MAX_SHOWN]}..."


def _usage(document: dict[str, Any]) -> int | None:
    usage = document.get("usage")
    total = cast("dict[str, Any]", usage).get("total_tokens") if isinstance(usage, dict) else None
    known = isinstance(total, int) and not isinstance(total, bool) and total >= 0
    return total if known else None


def _sendable(value: Any) -> Any:
    """Return a JSON value without lone surrogates."""
    if isinstance(value, str):
        return replaced(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value)
        return {name: _sendable(item) for name, item in items.items()}
    if isinstance(value, list | tuple):
        return [_sendable(item) for item in cast("Sequence[Any]", value)]
    return value

"""Tokens as the gateway counts them: for the agent's own policy, by its own chat template."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from agl_core import semconv
from agl_core.budget.history import Message
from agl_core.errors import ConfigError, DeadlineError, EngineError
from agl_core.interfaces import Counted
from agl_core.serving import COUNT_PATH, NOT_COUNTED, PROMPT_REFUSED, CountAnswer
from agl_core.text import url_quoted
from agl_core.tracing import AttemptContext

_OK: Final = 200
_BAD_REQUEST: Final = 400
_TIMEOUT_S: Final = 60.0


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    code: Any = None


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error = _Error()


def count(
    context: AttemptContext, agent: str, messages: Sequence[Message], tools: Sequence[Any]
) -> Counted | None:
    """Ask the attempt's gateway; blocks.

    Returns:
        None where the model's chat template refuses the messages.

    Raises:
        ConfigError: called where the gateway could not answer, or its backend cannot count.
        DeadlineError: the attempt has no time left.
        EngineError: the gateway or its backend does not answer.
    """
    _refuse_on_loop()
    asked: dict[str, Any] = {"model": context.llm.model, "messages": list(messages)}
    if tools:  # some chat templates write a preamble for an empty list too
        asked["tools"] = list(tools)
    url = urlsplit(context.llm.base_url)
    path = url.path.rstrip("/") + COUNT_PATH
    seconds = min(context.seconds_left(), _TIMEOUT_S)
    if seconds <= 0:
        raise DeadlineError("The attempt's deadline has passed: its prompt was not counted")
    secure = url.scheme == "https"
    connection = (HTTPSConnection if secure else HTTPConnection)(url.netloc, timeout=seconds)
    try:
        # Not msgspec: half a character, which programs that cut text send, has to pass.
        connection.request("POST", path, json.dumps(asked).encode(), _headers(context, agent))
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, HTTPException) as error:
        raise EngineError(
            f"The gateway at {url.netloc} did not count a prompt's tokens: "
            f"{error or type(error).__name__}"
        ) from error
    finally:
        connection.close()
    return _read(answer.status, body, agent)


def _read(status: int, body: bytes, agent: str) -> Counted | None:
    try:
        if status == _OK:
            given = msgspec.json.decode(body, type=CountAnswer)
            return Counted(given.count, given.max_model_len)
        refusal = msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineError(f"The gateway answered no count but {body[:200]!r}") from error
    if status == _BAD_REQUEST and refusal.code == PROMPT_REFUSED:
        return None
    if status == NOT_COUNTED:
        raise ConfigError(
            f"Nobody counts the tokens of agent {agent!r}: {refusal.message}. Give PromptBudget a "
            f"count of your own"
        )
    raise EngineError(f"The gateway did not count a prompt's tokens: {status} {refusal.message}")


def _headers(context: AttemptContext, agent: str) -> Mapping[str, str]:
    identity = {
        semconv.HEADER_ROLLOUT: context.rollout.id,
        semconv.HEADER_ATTEMPT: context.attempt.id,
        semconv.HEADER_AGENT: agent,
        semconv.HEADER_ALIAS: context.aliases.names().get(agent, ""),
    }
    headers = {name: url_quoted(value) for name, value in identity.items() if value}
    return {
        **headers,
        "Authorization": f"Bearer {context.llm.api_key}",
        "Content-Type": "application/json",
    }


def _refuse_on_loop() -> None:
    """The gateway may answer on this very loop, which would wait for itself."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(
        "PromptBudget.fit would block the event loop that the gateway answers on: await "
        "PromptBudget.afit here, or call fit in a thread"
    )

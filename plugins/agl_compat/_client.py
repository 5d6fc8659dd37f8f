"""Requests of the current attempt to its gateway, over Python's own HTTP client."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from agl_core import semconv
from agl_core.clocks import new_id
from agl_core.errors import (
    AglError,
    CaptureError,
    ConfigError,
    ContextOverflowError,
    DeadlineError,
    EngineError,
)
from agl_core.text import url_quoted
from agl_core.tracing import AttemptContext, active, request_scope
from agl_core.types import Scope, SpanKind

_CHAT: Final = "/chat/completions"
_TIMEOUT_S: Final = 600.0
_SERVER_ERROR: Final = 500
_DIRECT: Final = urllib.request.ProxyHandler({})
_KINDS: Final[Mapping[str, type[AglError]]] = {
    "context_length_exceeded": ContextOverflowError,
    "deadline_exceeded": DeadlineError,
}


def chat(body: Mapping[str, Any]) -> Any:
    """Ask the model for a chat completion, as the agent of the current scope.

    Outside a rollout the request goes to ``OPENAI_BASE_URL`` with ``OPENAI_API_KEY``.

    Raises:
        ConfigError: outside a rollout, no address is set.
        EngineError: the model does not answer, or refuses the request.
    """
    context = active()
    if context is None:
        return _send(*_environment(), _CHAT, body, {})
    scope = request_scope(context)
    call_id = new_id("call")
    attributes: dict[str, Any] = {semconv.GEN_AI_OPERATION_NAME: "chat"}
    if scope is not None and not scope.trainable:
        attributes[semconv.AGL_TRAINABLE] = False
    span = begin_call(context, scope, call_id, attributes)
    try:
        answer = (
            post(context, _CHAT, body, scope=scope, call_id=call_id)
            if context.llm.base_url
            else _send(*_environment(), _CHAT, body, {})  # traced outside a rollout
        )
    except BaseException as error:
        context.recorder.end_with(span, error)
        raise
    context.recorder.end(span)
    return answer


def begin_call(
    context: AttemptContext, scope: Scope | None, call_id: str, attributes: Mapping[str, Any]
) -> str:
    """Record the client's span of a call that the gateway records under the same id."""
    return context.recorder.start(
        SpanKind.LLM, "chat", call_id=call_id, attributes=attributes, scope=scope
    )


def post(
    context: AttemptContext,
    path: str,
    body: Mapping[str, Any],
    *,
    scope: Scope | None,
    call_id: str = "",
) -> Any:
    """Send a request to the attempt's gateway, with the identity of a scope.

    Raises:
        EngineError, CaptureError, ContextOverflowError, DeadlineError: by the gateway's answer.
    """
    agent = (scope.agent if scope is not None else None) or ""
    headers = {
        semconv.HEADER_ROLLOUT: context.rollout.id,
        semconv.HEADER_ATTEMPT: context.attempt.id,
        semconv.HEADER_AGENT: agent,
        semconv.HEADER_ALIAS: context.aliases.at_call(agent) if agent else "",
        semconv.HEADER_AGENT_RUN: (scope.agent_run_id if scope is not None else None) or "",
        semconv.HEADER_CALL: call_id,
        semconv.HEADER_TRAINABLE: "1" if scope is None or scope.trainable else "0",
    }
    named = {name: url_quoted(value) for name, value in headers.items() if value}
    parts = urlsplit(context.llm.base_url)
    base = f"{parts.scheme}://{parts.netloc}/v1"
    return _send(base, context.llm.api_key, path, body, named)


def _environment() -> tuple[str, str]:
    base = os.environ.get("OPENAI_BASE_URL")
    if not base:
        raise ConfigError(
            "There is no model to ask: outside a rollout set OPENAI_BASE_URL, such as "
            "http://127.0.0.1:8000/v1, and OPENAI_API_KEY"
        )
    return base.rstrip("/"), os.environ.get("OPENAI_API_KEY", "")


def _send(
    base: str, key: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> Any:
    if not base.startswith(("http://", "https://")):
        raise ConfigError(f"The model's address {base!r} is no http:// or https:// address")
    content = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(  # noqa: S310  the scheme is checked above
        base + path, msgspec.json.encode(body), {**content, **headers}
    )
    opener = urllib.request.build_opener(_DIRECT) if headers else urllib.request.build_opener()
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            return msgspec.json.decode(answer.read())
    except urllib.error.HTTPError as error:
        raise _refusal(path, error.code, error.read()) from error
    except (urllib.error.URLError, OSError, msgspec.DecodeError) as error:
        raise EngineError(f"{base}{path} gives no answer: {error}") from error


def _refusal(path: str, status: int, body: bytes) -> AglError:
    """Return the error of an HTTP status, by the code in the body."""
    try:
        problem: Any = msgspec.json.decode(body)["error"]
        code, message = str(problem["code"]), str(problem["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        code, message = "", body[:500].decode("utf-8", "replace")
    text = f"HTTP {status} for {path}: {message}"
    if path == "/triplets" and status < _SERVER_ERROR:
        return CaptureError(text)
    return _KINDS.get(code, EngineError)(text)

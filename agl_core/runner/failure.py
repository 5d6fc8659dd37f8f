"""Say why an attempt failed: one exception in, one recorded failure out."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, cast

from agl_core.errors import (
    CaptureError,
    ContextOverflowError,
    DeadlineError,
    EngineError,
    RewardError,
)
from agl_core.tracing import describe, origin_key, users_traceback
from agl_core.types import Failure, FailureKind
from agl_core.types.overflow import OVERFLOW, says_overflow

_DEADLINE: Final = "deadline_exceeded"
_REFUSED: Final = (400, 413, 422)
"""Statuses with which servers refuse a prompt that is too long."""
_SERVER_ERROR: Final = 500
_MAX_TEXT: Final = 16_384

_TYPED: Final[tuple[tuple[type[BaseException], FailureKind], ...]] = (
    (DeadlineError, FailureKind.DEADLINE),
    (ContextOverflowError, FailureKind.CONTEXT_OVERFLOW),
    (EngineError, FailureKind.ENGINE),
    (CaptureError, FailureKind.CAPTURE),
)


def failure_of(
    error: BaseException, *, stage: FailureKind, origins: frozenset[str], late: bool
) -> Failure:
    """Classify what the agent or a reward raised.

    Frameworks wrap what their clients raise, so causes, contexts and the members of exception
    groups are looked at too, and a client's error is known by its attributes and not by its class:
    a 400 with ``code`` ``context_length_exceeded``, or with the words of one of the usual servers,
    is an overflow; a 5xx or a connection that failed is the engine's fault if the request went to
    the gateway. A tool's own web server that fails is the agent's fault.

    Args:
        error: What was raised.
        stage: AGENT or REWARD: whose fault it is when nothing else is known.
        origins: ``host:port`` of the gateway.
        late: The attempt's deadline had passed; then that is the cause of what was raised.
    """
    kind, cause = (FailureKind.DEADLINE, error) if late else _kind(error, stage, origins)
    cls = type(error)
    message = describe(error)
    if describe(cause) not in message:
        # A client's "Connection error." hides which address was refused, and the fix.
        message = f"{message} (caused by {describe(cause)})"
    if isinstance(error, SystemExit):
        message = f"The {stage.value} called sys.exit({error.code!r}): return or raise instead"
    return Failure(
        kind=kind,
        message=message[:_MAX_TEXT],
        type=f"{cls.__module__}.{cls.__qualname__}",
        traceback=_traceback(error)[-_MAX_TEXT:],
    )


def _kind(
    error: BaseException, stage: FailureKind, origins: frozenset[str]
) -> tuple[FailureKind, BaseException]:
    """What kind of failure it is, and the exception that decides so."""
    found = stage, error
    for cause in _chain(error):
        for cls, typed in _TYPED:
            if isinstance(cause, cls):
                return typed, cause
        answered = _answered(cause, origins)
        if answered is not None:
            return answered, cause
        if isinstance(cause, RewardError):
            found = FailureKind.REWARD, cause
    return found


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, then what it came from, breadth first and each once."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [cause for cause in (current.__cause__, current.__context__) if cause]
        members = getattr(current, "exceptions", ())
        if isinstance(members, (list, tuple)):
            group = cast("list[Any] | tuple[Any, ...]", members)
            waiting += [member for member in group if isinstance(member, BaseException)]


def _answered(error: BaseException, origins: frozenset[str]) -> FailureKind | None:
    """What an HTTP client's exception says about the gateway's answer; None for all others."""
    response = _attribute(error, "response", object)
    status = _attribute(error, "status_code", int) or _attribute(response, "status_code", int)
    answer = _attribute(response, "text", str) or ""
    code = _code(error, answer)
    overflow = code == OVERFLOW or says_overflow(describe(error)) or says_overflow(answer)
    if overflow and status in _REFUSED:
        return FailureKind.CONTEXT_OVERFLOW
    if _origin(error) in origins:
        if code == _DEADLINE:
            return FailureKind.DEADLINE
        if status is None or status >= _SERVER_ERROR:
            return FailureKind.ENGINE
    # Some frameworks keep only the text of what they wrap.
    return FailureKind.CONTEXT_OVERFLOW if overflow and status is None else None


def _code(error: BaseException, answer: str) -> str | None:
    """The machine-readable cause, which SDKs take out of the answer and plain clients do not."""
    code = _attribute(error, "code", str)
    body: Any = _attribute(error, "body", Mapping)
    if code is not None:
        return code
    if body is None:
        with suppress(ValueError, RecursionError):
            body = json.loads(answer)
    inner: Any = body.get("error", body) if isinstance(body, Mapping) else None  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
    found: Any = (
        cast("Mapping[str, Any]", inner).get("code") if isinstance(inner, Mapping) else None
    )
    return found if isinstance(found, str) else None


def _origin(error: BaseException) -> str:
    """``host:port`` that the failed request went to; empty when the error does not say."""
    request = _attribute(error, "request", object)
    url = _attribute(request, "url", object)
    host = _attribute(url, "host", str)
    scheme = _attribute(url, "scheme", str)
    if host is None or scheme is None:
        return ""
    return origin_key(host, _attribute(url, "port", int), scheme)


def _attribute(owner: Any, name: str, kind: type[Any]) -> Any:
    """An attribute of the expected type; properties of client errors may raise anything."""
    try:
        value = getattr(owner, name, None)
    except Exception:  # noqa: BLE001  such as an answer that was never read, or no longer can be
        return None
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _traceback(error: BaseException) -> str:
    """The user's frames, without those of the runner before them."""
    lines: Callable[..., list[str]] = traceback.format_exception
    frames = users_traceback(error.__traceback__) or error.__traceback__
    return "".join(lines(type(error), error, frames))

"""Classification of the exception that ended an attempt."""

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
from agl_core.types.rollout import OVERFLOW, says_overflow

_DEADLINE: Final = "deadline_exceeded"
_REFUSED: Final = (400, 413, 422)
"""HTTP statuses of servers that refuse a prompt as too long."""
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
    """Classify an exception of the agent or of a reward.

    Frameworks wrap their clients' exceptions, so causes, contexts and members of exception groups
    are checked too. A client's error is recognised by its attributes, not by its class: a 400 with
    ``code`` ``context_length_exceeded``, or with the words of a common server, is an overflow; a
    5xx or a failed connection is an engine failure if the request was sent to the gateway. A
    failing web server of a tool is an agent failure.

    Args:
        error: The exception.
        stage: AGENT or REWARD: the kind of failure without another known cause.
        origins: ``host:port`` of the gateway.
        late: Whether the attempt's deadline had passed; then the deadline is the cause.
    """
    kind, cause = (FailureKind.DEADLINE, error) if late else _kind(error, stage, origins)
    cls = type(error)
    message = describe(error)
    if describe(cause) not in message:
        # A client's "Connection error." contains neither the refused address nor the fix.
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
    """Return the kind of failure, and the exception that determines it."""
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
    """Yield the exception, then its causes, breadth first and each once."""
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
    """Return the kind of failure from an HTTP client's exception; None for other exceptions."""
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
    # Some frameworks keep only the text of the exception that they wrap.
    return FailureKind.CONTEXT_OVERFLOW if overflow and status is None else None


def _code(error: BaseException, answer: str) -> str | None:
    """Return the error code; SDKs parse it from the answer, plain HTTP clients do not."""
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
    """Return ``host:port`` of the failed request; empty if the error does not have it."""
    request = _attribute(error, "request", object)
    url = _attribute(request, "url", object)
    host = _attribute(url, "host", str)
    scheme = _attribute(url, "scheme", str)
    if host is None or scheme is None:
        return ""
    return origin_key(host, _attribute(url, "port", int), scheme)


def _attribute(owner: Any, name: str, kind: type[Any]) -> Any:
    """Return an attribute if it has the type; properties of client errors may raise."""
    try:
        value = getattr(owner, name, None)
    except Exception:  # noqa: BLE001  such as the text of an answer that was not read
        return None
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _traceback(error: BaseException) -> str:
    """Return the traceback from the user's first frame on, without the runner's frames."""
    lines: Callable[..., list[str]] = traceback.format_exception
    frames = users_traceback(error.__traceback__) or error.__traceback__
    return "".join(lines(type(error), error, frames))

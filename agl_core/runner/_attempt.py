"""One attempt: calling the agent, scoring its output, and determining how the attempt ended."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from agl_core import waits
from agl_core.errors import (
    CaptureError,
    ContextOverflowError,
    DeadlineError,
    EngineError,
    RewardError,
    StoreError,
)
from agl_core.interfaces import AttemptRecord, Gateway, Store
from agl_core.runner._limits import AttemptDeadline
from agl_core.threads import UserResult
from agl_core.tracing import (
    SpanStart,
    describe,
    enter,
    open_span,
    origin_key,
    represent,
    users_traceback,
)
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Claim,
    Failure,
    FailureKind,
    Reward,
    Span,
    SpanKind,
    Task,
)
from agl_core.types.rollout import OVERFLOW, failure_by_calls, none_fit, overflowed, says_overflow

Agent = Callable[[Task], Any]
"""The agent program; a plain function or a coroutine function."""
Recorded = Callable[[], Awaitable[list[Span]]]
"""Reads the attempt's records that the gateway has written so far."""
Grade = Callable[[AttemptRecord, Any], Awaitable[list[Reward]]]
"""Scores an attempt from its record and the agent's return value."""

REWARD_AGENT: Final = "@reward"
"""Reserved name under which rewards call models; such calls are never trained."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The outcome of an attempt, for the store."""

    status: AttemptStatus
    output: Any = None
    failure: Failure | None = None


class AttemptRun:
    """Runs user code inside an attempt's context; its exceptions are recorded as failures."""

    def __init__(
        self, limits: AttemptDeadline, agent: Agent, score: Grade | None, recorded: Recorded
    ) -> None:
        """Set agent and rewards; `run` calls them."""
        self._limits = limits
        self._agent = agent
        self._score = score
        self._recorded = recorded

    async def run(self) -> Ending:
        """Run agent and rewards under one deadline.

        A cancellation is not caught: it comes from the runner.

        Raises:
            StoreError: the gateway's records could not be written or read.
        """
        context = self._limits.context
        with enter(context):
            outcome = await self._limits.call(self._agent, context.rollout.task)
            if outcome.error is not None:
                return self._failed(outcome.error, FailureKind.AGENT)
            if self._score is not None:
                error = await self._scored(self._score, outcome.value)
                if error is not None:
                    return self._failed(error, FailureKind.REWARD, output=outcome.value)
        return Ending(status=AttemptStatus.SUCCEEDED, output=outcome.value)

    async def _scored(self, score: Grade, output: Any) -> BaseException | None:
        context = self._limits.context
        recorder = context.recorder
        others = await self._limits.wait(self._recorded)
        if isinstance(others.error, StoreError):
            raise others.error  # not a failure of the reward: the runner handles store errors
        if others.error is not None:
            return others.error
        spans = [*recorder.snapshot(), *others.value]
        record = AttemptRecord(rollout=context.rollout, attempt=context.attempt, spans=spans)
        start = SpanStart(
            SpanKind.OPERATION, "reward", scope="agent", agent=REWARD_AGENT, trainable=False
        )
        span = open_span(recorder, start).activate()
        outcome = await self._limits.wait(score, record, output)
        error = outcome.error or _unusable(score, outcome)
        span.end(failed=None if error is None else represent(error))
        if error is not None:
            return error
        for reward in outcome.value:
            recorder.reward(reward)
        return None

    def _failed(self, error: BaseException, stage: FailureKind, *, output: Any = None) -> Ending:
        context = self._limits.context
        late = context.seconds_left() <= 0
        failure = failure_of(error, stage=stage, origins=context.origins, late=late)
        timed_out = failure.kind is FailureKind.DEADLINE
        status = AttemptStatus.TIMED_OUT if timed_out else AttemptStatus.FAILED
        return Ending(status=status, output=output, failure=failure)


def _unusable(score: Grade, outcome: UserResult) -> RewardError | None:
    value = outcome.value
    if isinstance(value, list) and all(isinstance(each, Reward) for each in value):  # pyright: ignore[reportUnknownVariableType]
        return None
    name = getattr(score, "__qualname__", type(score).__qualname__)
    return RewardError(
        f"Reward function {name!r} returned {represent(value)}: return a list of rewards, empty "
        f"if the agent emits its own"
    )


_STOPPED: Final = (FailureKind.CANCELLED, FailureKind.LOST)


async def opened(gateway: Gateway, claim: Claim) -> Ending | None:
    """Open the attempt at the gateway; return the attempt's ending if that fails, else None.

    Raises:
        StaleAttemptError: the gateway has sealed the attempt.
    """
    try:
        await gateway.open(claim.rollout, claim.attempt)
    except EngineError as error:
        return _failed(error)
    return None


async def sealed(gateway: Gateway, attempt_id: str, ending: Ending) -> Ending:
    """Seal an attempt; return its ending, which is a failure if calls could not be recorded.

    Raises:
        StoreError: the gateway could not write the records.
    """
    stopped = ending.failure is not None and ending.failure.kind in _STOPPED
    try:
        await asyncio.wait_for(gateway.seal(attempt_id), waits.SEAL_S if stopped else None)
    except TimeoutError:
        return ending
    except EngineError as error:
        return ending if stopped else _failed(error, ending)
    return ending


def _failed(error: EngineError, before: Ending | None = None) -> Ending:
    """Return a failed ending, even if the agent succeeded: an attempt must not lack calls."""
    message = describe(error)
    if before is not None and before.failure is not None:
        message = f"{message} (the attempt had failed before: {before.failure.message})"
    failure = Failure(kind=FailureKind.ENGINE, message=message, type=type(error).__qualname__)
    output = before.output if before is not None else None
    return Ending(status=AttemptStatus.FAILED, output=output, failure=failure)


async def reconsidered(
    store: Store, attempt: Attempt, ending: Ending, spans: Sequence[Span]
) -> Ending:
    """Return the final ending of a sealed attempt, after checking its calls for an overflow.

    If the agent or its framework dropped the error of a prompt that did not fit, or treated it as
    an answer, only the gateway's records show it. They are read only if a call failed and there is
    no other cause, which is rare.

    Args:
        store: The store with the gateway's records.
        attempt: The sealed attempt.
        ending: The ending according to the agent.
        spans: The spans of tracing.
    """
    if not any(span.kind is SpanKind.LLM and span.status == "error" for span in spans):
        return ending
    if ending.failure is None and ending.status is not AttemptStatus.SUCCEEDED:
        return ending
    if ending.failure is not None and ending.failure.kind is not FailureKind.AGENT:
        return ending
    recorded = await store.spans([attempt.rollout_id], attempt_id=attempt.id)
    calls = [span.call for span in recorded if span.call is not None]
    if ending.failure is not None:
        return replace(ending, failure=failure_by_calls(ending.failure, calls))
    agents = overflowed(calls)
    if not agents:
        return ending
    return replace(ending, status=AttemptStatus.FAILED, failure=none_fit(agents))


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

"""One attempt: calling the agent, scoring its output, and determining how the attempt ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from agl_core import waits
from agl_core.errors import EngineError, RewardError, StoreError
from agl_core.interfaces import AttemptRecord, Gateway, Store
from agl_core.runner.failure import failure_of
from agl_core.runner.limits import AttemptDeadline
from agl_core.threads import Outcome
from agl_core.tracing import SpanStart, describe, enter, open_span, represent
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
from agl_core.types.rollout import failure_by_calls, none_fit, overflowed

Agent = Callable[[Task], Any]
"""The agent program; a plain function or a coroutine function."""
Recorded = Callable[[], Awaitable[list[Span]]]
"""Reads the attempt's records that the gateway has written so far."""
Score = Callable[[AttemptRecord, Any], Awaitable[list[Reward]]]
"""Scores an attempt from its record and the agent's return value."""

REWARD_AGENT: Final = "@reward"
"""Reserved name under which rewards call models; such calls are never trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The outcome of an attempt, for the store."""

    status: AttemptStatus
    output: Any = None
    failure: Failure | None = None


class AttemptRun:
    """Runs user code inside an attempt's context; its exceptions are recorded as failures."""

    def __init__(
        self, limits: AttemptDeadline, agent: Agent, score: Score | None, recorded: Recorded
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

    async def _scored(self, score: Score, output: Any) -> BaseException | None:
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


def _unusable(score: Score, outcome: Outcome) -> RewardError | None:
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

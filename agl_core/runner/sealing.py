"""Open and close an attempt at a gateway that may be another process, and may have gone."""

from __future__ import annotations

import asyncio
from typing import Final

from agl_core.errors import EngineError
from agl_core.interfaces import Gateway
from agl_core.runner.attempt import Ending
from agl_core.tracing import describe
from agl_core.types import AttemptStatus, Claim, Failure, FailureKind

_STOPPED: Final = (FailureKind.CANCELLED, FailureKind.LOST)
_HURRY_S: Final = 3.0
"""A runner that stops waits no longer for a gateway that is away."""


async def opened(gateway: Gateway, claim: Claim) -> Ending | None:
    """Have the gateway take the attempt's calls; how the attempt ends if it cannot.

    Raises:
        StaleAttemptError: the gateway has sealed the attempt.
    """
    try:
        await gateway.open(claim.rollout, claim.attempt)
    except EngineError as error:
        return _failed(error)
    return None


async def sealed(gateway: Gateway, attempt_id: str, ending: Ending) -> Ending:
    """Seal an attempt; what it comes to, as calls of it may not be on record.

    Raises:
        StoreError: the gateway could not write the records.
    """
    stopped = ending.failure is not None and ending.failure.kind in _STOPPED
    try:
        await asyncio.wait_for(gateway.seal(attempt_id), _HURRY_S if stopped else None)
    except TimeoutError:
        return ending
    except EngineError as error:
        return ending if stopped else _failed(error, ending)
    return ending


def _failed(error: EngineError, before: Ending | None = None) -> Ending:
    """Whatever the agent made of it: an attempt with missing calls must not be learnt from."""
    message = describe(error)
    if before is not None and before.failure is not None:
        message = f"{message} (the attempt had failed before: {before.failure.message})"
    failure = Failure(kind=FailureKind.ENGINE, message=message, type=type(error).__qualname__)
    output = before.output if before is not None else None
    return Ending(status=AttemptStatus.FAILED, output=output, failure=failure)

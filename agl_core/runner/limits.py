"""Run user code under one deadline, whatever it raises and however it hangs."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agl_core.errors import AgentError, DeadlineError
from agl_core.interrupts import may_be_the_users
from agl_core.tracing import AttemptContext
from agl_core.tracing.threads import (
    Outcome,
    ThreadCall,
    end_fork,
    in_thread,
    is_async,
    watch_threads,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one attempt's user code."""

    context: AttemptContext
    grace_s: float
    """How long cancelled code may take to end before it is left to itself."""
    abandoned: Callable[[threading.Thread | asyncio.Task[Any]], None]
    """Told of code that could not be stopped. Nothing it does later is recorded: the gateway has
    closed its calls, its recorder has ended, and the store's fence refuses the attempt."""

    async def call(self, function: Callable[[Any], Any], argument: Any) -> Outcome:
        """Call a coroutine function on the loop, any other function in a thread of its own."""
        if is_async(function):
            return await self.wait(function, argument)
        in_own_thread = partial(in_thread, name=f"agl-{self.context.attempt.id}")
        outcome = await self.wait(in_own_thread, function, argument)
        if outcome.error is None:
            outcome = outcome.value
        if inspect.isawaitable(outcome.value):
            return await self.wait(lambda: outcome.value)
        return outcome

    async def wait(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> Outcome:
        """Call and await user code in a task of its own, which is cancelled at the deadline."""
        with watch_threads() as threads:
            task = asyncio.create_task(_guarded(function, *arguments))
        try:
            await asyncio.wait({task}, timeout=max(0.0, self.context.seconds_left()))
            if task.done():
                return task.result()
        except asyncio.CancelledError:
            await self._stop(task, threads)
            raise
        await self._stop(task, threads)
        attempt, limits = self.context.attempt, self.context.rollout.limits
        return Outcome(
            error=DeadlineError(
                f"Attempt {attempt.id!r} did not end within {limits.timeout_s:g} s: raise the "
                f"rollout's timeout_s, or let the agent do less"
            )
        )

    async def _stop(self, task: asyncio.Task[Outcome], threads: Sequence[ThreadCall]) -> None:
        task.cancel()
        running = [call.ended for call in threads]
        await asyncio.wait({task, *running}, timeout=self.grace_s)
        if not task.done():
            self.abandoned(task)
        for call in threads:
            if not call.ended.done():
                self.abandoned(call.thread)


async def _guarded(function: Callable[..., Awaitable[Any]], *arguments: Any) -> Outcome:
    process = os.getpid()
    outcome = await _outcome(function, *arguments)
    end_fork(process, outcome)
    return outcome


async def _outcome(function: Callable[..., Awaitable[Any]], *arguments: Any) -> Outcome:
    try:
        return Outcome(await function(*arguments))
    except KeyboardInterrupt as error:
        if may_be_the_users():
            raise
        return Outcome(error=error)
    except asyncio.CancelledError as error:
        return Outcome(error=_as_failure(error))
    except BaseException as error:  # noqa: BLE001  rollout zone: recorded as data
        return Outcome(error=error)


def _as_failure(error: asyncio.CancelledError) -> AgentError:
    """A cancellation of the agent's own making; ours are not looked at."""
    failure = AgentError("The agent's coroutine was cancelled from inside: let it return or raise")
    failure.__cause__ = error
    return failure

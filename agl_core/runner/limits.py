"""Run user code under one deadline, whatever it raises and however it hangs."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from agl_core.clocks import monotonic
from agl_core.errors import DeadlineError
from agl_core.interrupts import may_be_the_users
from agl_core.tracing import AttemptContext
from agl_core.tracing.agent_loop import LoopCall, Stall, cancelled_inside, on_agent_loop
from agl_core.tracing.threads import (
    Outcome,
    UserCall,
    end_fork,
    in_thread,
    is_async,
    watch_calls,
)

UNBLOCK: Final = (
    "Make {function!r} a plain def, which runs in a thread of its own, or await its blocking calls "
    "with asyncio.to_thread(...)"
)
"""What to do about a function that blocks the agents' loop."""


def _nothing(after_s: float) -> None:
    del after_s


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one attempt's user code."""

    context: AttemptContext
    grace_s: float
    """How long cancelled code may take to end before it is left to itself."""
    abandoned: Callable[[threading.Thread | asyncio.Task[Any]], None]
    """Called with code that could not be stopped. Nothing it does later is recorded: the gateway has
    closed its calls, its recorder has ended, and the store's fence refuses the attempt."""
    begun: Callable[[float], None] = _nothing
    """Called when the agent first lets others run, with the seconds since it was submitted; may be
    called again."""

    async def call(self, function: Callable[[Any], Any], argument: Any) -> Outcome:
        """Call a coroutine function on the agents' loop, any other in a thread of its own."""
        if is_async(function):
            return await self._on_loop(function, argument)
        self.begun(0.0)
        in_own_thread = partial(in_thread, name=f"agl-{self.context.attempt.id}")
        outcome = await self.wait(in_own_thread, function, argument)
        if outcome.error is None:
            outcome = outcome.value
        if inspect.isawaitable(outcome.value):
            return await self._on_loop(lambda: outcome.value)
        return outcome

    async def _on_loop(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> Outcome:
        submitted_at = monotonic()
        on_loop = partial(on_agent_loop, yielded=lambda: self.begun(monotonic() - submitted_at))
        outcome = await self.wait(on_loop, function, *arguments)
        return outcome if outcome.error is not None else outcome.value

    async def wait(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> Outcome:
        """Call and await in a task, which is cancelled at the deadline, and user code with it."""
        with watch_calls() as calls:
            task = asyncio.create_task(_guarded(function, *arguments))
        try:
            await asyncio.wait({task}, timeout=max(0.0, self.context.seconds_left()))
            if task.done():
                return task.result()
        except asyncio.CancelledError:
            await self._stop(task, calls)
            raise
        stalls = [call.stall() for call in calls if isinstance(call, LoopCall)]
        await self._stop(task, calls)
        return Outcome(error=self._late(next((each for each in stalls if each), None)))

    async def _stop(self, task: asyncio.Task[Outcome], calls: Sequence[UserCall]) -> None:
        task.cancel()
        running = [call.ended for call in calls]
        await asyncio.wait({task, *running}, timeout=self.grace_s)
        if not task.done():
            self.abandoned(task)
        for call in calls:
            if call.ended.done():
                continue
            if isinstance(call, LoopCall):
                call.given_up = True
            remnant = call.remnant
            if remnant is not None:
                self.abandoned(remnant)

    def _late(self, stall: Stall | None) -> DeadlineError:
        attempt, timeout_s = self.context.attempt, self.context.rollout.limits.timeout_s
        message = f"Attempt {attempt.id!r} did not end within {timeout_s:g} s"
        if stall is None:
            return DeadlineError(
                f"{message}: raise the rollout's timeout_s, or let the agent do less"
            )
        whose = "its own code" if stall.attempt_id == attempt.id else "other code"
        return DeadlineError(
            f"{message}, as {stall}, which is {whose}. {UNBLOCK.format(function=stall.function)}"
        )


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
        return Outcome(error=cancelled_inside(error))
    except BaseException as error:  # noqa: BLE001  rollout zone: recorded as data
        return Outcome(error=error)

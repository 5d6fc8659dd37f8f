"""Running user code under one deadline, even if it raises or hangs."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from agl_core._interrupts import may_be_the_users
from agl_core.clocks import monotonic
from agl_core.errors import DeadlineError
from agl_core.runner._agent_loop import (
    LoopCall,
    Stall,
    agent_loop,
    cancelled_inside,
    on_agent_loop,
    replace_loop,
)
from agl_core.threads import (
    UserCall,
    UserResult,
    end_fork,
    in_thread,
    is_async,
    watch_calls,
)
from agl_core.tracing import AttemptContext, describe

UNBLOCK: Final = (
    "Make {function!r} a plain def, which runs in a thread of its own, or await its blocking calls "
    "with asyncio.to_thread(...)"
)
"""The fix for a function that blocks the agents' loop."""


def _nothing(after_s: float) -> None:
    del after_s


@dataclass(frozen=True, slots=True)
class AttemptDeadline:
    """Runs the user code of one attempt until its deadline."""

    context: AttemptContext
    grace_s: float
    """Longest time for cancelled code to end before it is abandoned."""
    abandoned: Callable[[threading.Thread | asyncio.Task[Any]], None]
    """Called with code that could not be stopped. Nothing is recorded of it afterwards: the gateway
    has closed its calls, its recorder has ended, and the store refuses its fence."""
    begun: Callable[[float], None] = _nothing
    """Called at the agent's first await, with the seconds since it was submitted; may be called
    again."""

    async def call(self, function: Callable[[Any], Any], argument: Any) -> UserResult:
        """Call a coroutine function on the agents' loop, any other function in its own thread."""
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

    async def _on_loop(
        self, function: Callable[..., Awaitable[Any]], *arguments: Any
    ) -> UserResult:
        submitted_at = monotonic()
        on_loop = partial(on_agent_loop, yielded=lambda: self.begun(monotonic() - submitted_at))
        outcome = await self.wait(on_loop, function, *arguments)
        return outcome if outcome.error is not None else outcome.value

    async def wait(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> UserResult:
        """Call and await in a task; at the deadline the task and its user code are cancelled."""
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
        return UserResult(error=self._late(next((each for each in stalls if each), None)))

    async def _stop(self, task: asyncio.Task[UserResult], calls: Sequence[UserCall]) -> None:
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


async def _guarded(function: Callable[..., Awaitable[Any]], *arguments: Any) -> UserResult:
    process = os.getpid()
    outcome = await _outcome(function, *arguments)
    end_fork(process, outcome)
    return outcome


async def _outcome(function: Callable[..., Awaitable[Any]], *arguments: Any) -> UserResult:
    try:
        return UserResult(await function(*arguments))
    except KeyboardInterrupt as error:
        if may_be_the_users():
            raise
        return UserResult(error=error)
    except asyncio.CancelledError as error:
        return UserResult(error=cancelled_inside(error))
    except BaseException as error:  # noqa: BLE001  rollout zone: recorded as data
        return UserResult(error=error)


_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.25
"""Interval of checks. A blockage may begin just after a response: the next check starts to measure,
and the first check after `BLOCKED_S` finds it. These 4.5 s leave 0.5 s of the documented 5 s."""
_PROMPT_S: Final = 0.2
"""If coroutines take longer to their first await, fewer are started at the same time."""
_PLACES: Final = 100
"""Most blocking functions that are recorded and logged."""


class LoopWatch:
    """Checks from the runner's loop whether the agents' loop is blocked."""

    def __init__(self) -> None:
        self._longest: dict[str, Stall] = {}

    @property
    def stalls(self) -> list[Stall]:
        """The longest stall of each blocking function."""
        return list(self._longest.values())

    async def run(self) -> None:
        """Check every `_LOOK_S` until cancelled."""
        known = ""
        while True:
            try:
                self.look()
            except Exception as error:  # noqa: BLE001  telemetry: the source may be unreadable
                if (problem := describe(error)) != known:
                    _log.warning("The agents' event loop cannot be watched: %s", problem)
                known = problem
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """Record a stall, and replace the loop if the attempt that blocks it has ended."""
        loop = agent_loop()
        if loop is None:
            return
        stall = loop.stall()
        loop.ask()
        if stall is None:
            return
        self._keep(stall)
        if not loop.live(stall.attempt_id):
            # The attempt has ended, and its code may block forever.
            replace_loop(loop)

    def _keep(self, stall: Stall) -> None:
        where = f"{stall.function} {stall.place.rpartition(':')[0]}"
        known = self._longest.get(where)
        if known is None and len(self._longest) < _PLACES:
            _log.warning(
                "Blocked: %s. Gateway, heartbeats and deadlines are not affected, but every other "
                "async agent and reward of this process waits. %s. Further stalls of this "
                "function are not logged. Stack:\n%s",
                stall,
                UNBLOCK.format(function=stall.function),
                stall.stack,
            )
        if known is not None or len(self._longest) < _PLACES:
            longest = known if known is not None and known.seconds > stall.seconds else stall
            self._longest[where] = longest


class StartThrottle:
    """Limits how many attempts may start at the same time: few, until agents reach an await.

    An async agent that never awaits blocks all others, whose deadlines would pass while they wait.
    Attempts that are not claimed stay in the queue for other processes.
    """

    def __init__(self) -> None:
        self._beginning: set[str] = set()
        self._most = 1
        self.changed = asyncio.Event()
        """Set when more may start."""

    def allowed(self, free: int) -> int:
        """Return how many attempts to claim, at most `free`."""
        self.changed.clear()
        return min(free, self._most - len(self._beginning))

    def begin(self, attempt_id: str) -> None:
        """Count an attempt that was claimed."""
        self._beginning.add(attempt_id)

    def begun(self, attempt_id: str, after_s: float) -> None:
        """Adjust the limit: the agent reached its first await `after_s` after its submission."""
        if attempt_id in self._beginning:
            slow = after_s > _PROMPT_S
            self._most = max(self._most // 2, 1) if slow else self._most + 1
            self.ended(attempt_id)

    def ended(self, attempt_id: str) -> None:
        """Forget an attempt that has started or failed to start."""
        self._beginning.discard(attempt_id)
        self.changed.set()

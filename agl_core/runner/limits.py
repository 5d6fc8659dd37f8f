"""Run user code under one deadline, whatever it raises and however it hangs."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import threading
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from agl_core.errors import AgentError, DeadlineError
from agl_core.tracing import AttemptContext


@dataclass(frozen=True, slots=True)
class Outcome:
    """What user code gave back or raised; a value, so that no exception runs loose on the loop.

    A `SystemExit` or `KeyboardInterrupt` that leaves a task would stop the whole event loop.
    """

    value: Any = None
    error: BaseException | None = None


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
        """Call a coroutine function on the loop, any other function in a thread of its own.

        A thread per call, not a pool: a pool's threads are joined when the interpreter ends, so
        one that hangs would hang the program, and it would keep its place in the pool.
        """
        if is_async(function):
            return await self.wait(function, argument)
        outcome = await self._in_thread(function, argument)
        if inspect.isawaitable(outcome.value):
            return await self.wait(lambda: outcome.value)
        return outcome

    async def wait(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> Outcome:
        """Call and await user code in a task of its own, which is cancelled at the deadline."""
        task = asyncio.create_task(_guarded(function, *arguments))
        return await self._until_deadline(task, task, stop=task.cancel)

    async def _in_thread(self, function: Callable[[Any], Any], argument: Any) -> Outcome:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Outcome] = loop.create_future()
        context = copy_context()

        def deliver(outcome: Outcome) -> None:
            if not ended.done():
                ended.set_result(outcome)

        def work() -> None:
            try:
                outcome = Outcome(context.run(function, argument))
            except BaseException as error:  # noqa: BLE001  rollout zone: recorded as data
                outcome = Outcome(error=error)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(deliver, outcome)

        name = f"agl-{self.context.attempt.id}"
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return await self._until_deadline(ended, thread, stop=None)

    async def _until_deadline(
        self,
        ended: asyncio.Future[Outcome],
        runs: threading.Thread | asyncio.Task[Any],
        *,
        stop: Callable[[], Any] | None,
    ) -> Outcome:
        try:
            left_s = max(0.0, self.context.seconds_left())
            await asyncio.wait({ended}, timeout=left_s)
            if ended.done():
                return ended.result()
        except asyncio.CancelledError:
            await self._stop(ended, runs, stop)
            raise
        await self._stop(ended, runs, stop)
        attempt, limits = self.context.attempt, self.context.rollout.limits
        return Outcome(
            error=DeadlineError(
                f"Attempt {attempt.id!r} did not end within {limits.timeout_s:g} s: raise the "
                f"rollout's timeout_s, or let the agent do less"
            )
        )

    async def _stop(
        self,
        ended: asyncio.Future[Outcome],
        runs: threading.Thread | asyncio.Task[Any],
        stop: Callable[[], Any] | None,
    ) -> None:
        if stop is not None:
            stop()
        await asyncio.wait({ended}, timeout=self.grace_s)
        if not ended.done():
            self.abandoned(runs)


async def _guarded(function: Callable[..., Awaitable[Any]], *arguments: Any) -> Outcome:
    try:
        return Outcome(await function(*arguments))
    except KeyboardInterrupt as error:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise  # it may be the user's own Ctrl+C: nobody else turns that into a cancellation
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


def is_async(function: Any) -> bool:
    """Tell whether calling `function` gives a coroutine, for callable objects too."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  the method, not whether there is one
    )

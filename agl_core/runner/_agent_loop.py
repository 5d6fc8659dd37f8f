"""The event loop for coroutines of user code: one per process, in a separate thread.

Code that blocks it, such as a synchronous client inside an ``async def``, delays only coroutines of
agents and rewards: gateway, heartbeats and deadlines run on another loop. The loop stays open after
a run, so that connections of a module's client remain usable in the next run.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import selectors
import sys
import sysconfig
import threading
import traceback
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from agl_core import waits
from agl_core.clocks import monotonic, steady_loop
from agl_core.errors import AgentError
from agl_core.threads import UserResult, end_fork, unwatched, watched
from agl_core.tracing import active

_log = logging.getLogger(__name__)

BLOCKED_S: Final = 4.0
"""A loop that does not respond for this long is blocked; a first import also takes seconds."""
_LIBRARIES: Final = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)
"""Folders of code that is not the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A blockage of the loop."""

    seconds: float
    """Duration so far."""
    function: str
    """Name of the blocking coroutine function."""
    place: str
    """``file:line`` in that function."""
    stack: str
    """Stack from that line to the blocking call."""
    attempt_id: str | None
    """The attempt of the code; None if unknown."""

    def __str__(self) -> str:
        """Return one sentence, without the stack."""
        return (
            f"the event loop that async agents and rewards share is blocked for "
            f"{self.seconds:.1f} s by {self.function!r} ({self.place})"
        )


class LoopCall:
    """One call of a coroutine function."""

    def __init__(
        self,
        function: Callable[..., Awaitable[Any]],
        arguments: tuple[Any, ...],
        yielded: Callable[[], None] | None,
    ) -> None:
        """Set up the call, on the event loop that waits for it.

        Args:
            function: Called and awaited on the agents' loop, in a copy of the current context.
            arguments: Arguments of `function`.
            yielded: Called on the waiting loop after the first step of the coroutine.
        """
        self._home = asyncio.get_running_loop()
        self._yielded = yielded
        self._process = os.getpid()
        self.function = function
        self.arguments = arguments
        self.context = copy_context()
        self.ended: asyncio.Future[UserResult] = self._home.create_future()
        """Done when the coroutine has ended, even if its caller was cancelled before."""
        context = active()
        self.attempt_id = context.attempt.id if context is not None else None
        self.loop: AgentLoop | None = None
        self.task: asyncio.Task[UserResult] | None = None
        """None before the call begins."""
        self.cancelled = False
        """Whether the task has been cancelled."""
        self.given_up = False
        """Whether its attempt has ended before it."""

    def stall(self) -> Stall | None:
        """Return the stall of its loop, if the loop is blocked."""
        return self.loop.stall() if self.loop is not None else None

    @property
    def remnant(self) -> asyncio.Task[Any] | None:
        """The task if it cannot be stopped; a task that only waits for the loop will still end."""
        blocks = self.loop is not None and self.loop.running() == self.attempt_id
        return self.task if self.cancelled or blocks else None

    async def run(self) -> UserResult:
        """Run the function; this is the coroutine of the task."""
        unwatched()  # the list of watched calls belongs to the waiting loop
        try:
            outcome = UserResult(await self.function(*self.arguments))
        except asyncio.CancelledError as error:
            outcome = UserResult(error=cancelled_inside(error))
        except BaseException as error:  # noqa: BLE001  rollout zone: recorded as data
            outcome = UserResult(error=error)
        end_fork(self._process, outcome)
        return outcome

    def step_returned(self) -> None:
        if self._yielded is not None:
            self._notify(self._yielded)

    def settle(self, outcome: UserResult) -> None:
        """Pass the outcome to the waiting caller; callable from any thread."""
        self._notify(self._settle, outcome)

    def _settle(self, outcome: UserResult) -> None:
        if not self.ended.done():
            self.ended.set_result(outcome)

    def _notify(self, call: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
            self._home.call_soon_threadsafe(call, *arguments)


class AgentLoop:
    """The event loop and its thread."""

    def __init__(self) -> None:
        self._loop = steady_loop()
        self._loop.set_task_factory(self._new_task)
        self._executor = ThreadPoolExecutor(thread_name_prefix="agl-agents")
        self._loop.set_default_executor(self._executor)
        self._lock = threading.Lock()
        self._calls: dict[LoopCall, None] = {}
        self._owners: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._asked_at: float | None = None
        self._retired = False
        self.process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="agl-agents", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._ending():
            try:
                self._loop.run_forever()
            except BaseException:  # noqa: BLE001  such as SystemExit, from a task without awaiter
                _log.warning("A task of an agent raised what ends a loop", exc_info=True)
        self._loop.close()

    def _ending(self) -> bool:
        with self._lock:
            return self._retired and not self._calls

    def _new_task(self, loop: Any, coroutine: Any, **options: Any) -> Any:
        task = asyncio.Task(coroutine, loop=loop, **options)
        context = active()
        if context is not None:
            self._owners[task] = context.attempt.id
        return task

    def submit(self, call: LoopCall) -> None:
        """Begin a call; calls begin in the order of their submission."""
        with self._lock:
            self._calls[call] = None
            call.loop = self
        self._loop.call_soon_threadsafe(self._begin, call, context=call.context)

    def _begin(self, call: LoopCall) -> None:
        with self._lock:
            if call not in self._calls:  # cancelled, or taken to another loop
                return
            call.task = self._loop.create_task(call.run())
        call.task.add_done_callback(lambda task: self._end(call, task))
        self._loop.call_soon(call.step_returned)

    def _end(self, call: LoopCall, task: asyncio.Task[UserResult]) -> None:
        outcome = UserResult(error=cancelled_inside(None)) if task.cancelled() else task.result()
        with self._lock:
            self._calls.pop(call, None)
        call.step_returned()
        call.settle(outcome)
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        if self._ending():
            self._loop.stop()

    def cancel(self, call: LoopCall) -> None:
        """Cancel a call; a call that has not begun is removed."""
        with self._lock:
            if call.task is None:
                self._calls.pop(call, None)
        if call.task is None:
            call.settle(UserResult(error=cancelled_inside(None)))
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so the call has ended
                self._loop.call_soon_threadsafe(self._cancel, call, call.task)

    def _cancel(self, call: LoopCall, task: asyncio.Task[UserResult]) -> None:
        call.cancelled = True
        task.cancel()

    def running(self) -> str | None:
        """Return the attempt whose code the loop currently runs; callable from any thread."""
        task = None
        with contextlib.suppress(RuntimeError):
            task = asyncio.current_task(self._loop)
        return self._owners.get(task) if task is not None else None

    def ask(self) -> None:
        """Begin to measure how long the loop takes to respond."""
        if self._asked_at is None:
            self._asked_at = monotonic()
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._asked_at = None

    def stall(self) -> Stall | None:
        """Return the current blockage, if the loop has not responded for `BLOCKED_S`."""
        asked_at = self._asked_at
        seconds = 0.0 if asked_at is None else monotonic() - asked_at
        if seconds < BLOCKED_S:
            return None
        running = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        frame = running.get(self._thread.ident or 0)
        frames = _frames_of_coroutine(frame)
        if not frames or _waits_for_events(frames):
            return None
        outer, line = frames[0]
        return Stall(
            seconds=seconds,
            function=outer.f_code.co_name,
            place=f"{outer.f_code.co_filename}:{line}",
            stack="".join(traceback.StackSummary.extract(iter(frames)).format()),
            attempt_id=self.running(),
        )

    def live(self, attempt_id: str | None) -> bool:
        """Return whether the loop has a call of this attempt that has not been given up.

        Args:
            attempt_id: None, if a callback blocks, for any call that has begun.
        """
        with self._lock:
            calls = [call for call in self._calls if not call.given_up]
        if attempt_id is None:
            return any(call.task is not None for call in calls)
        return any(call.attempt_id == attempt_id for call in calls)

    def retire(self) -> list[LoopCall]:
        """Take no more calls and end after the last running one; return those not begun."""
        with self._lock:
            self._retired = True
            waiting = [call for call in self._calls if call.task is None]
            for call in waiting:
                del self._calls[call]
        self._loop.call_soon_threadsafe(self._stop_if_done)
        return waiting

    async def clear(self) -> None:
        """Cancel the remaining tasks of a run; called on another loop.

        Raises:
            asyncio.TimeoutError: the loop is blocked.
        """
        clearing = asyncio.run_coroutine_threadsafe(self._clear(), self._loop)
        await asyncio.wait_for(asyncio.wrap_future(clearing), waits.AGENT_LOOP_S)

    async def _clear(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        late: set[asyncio.Task[Any]] = set()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=waits.TASKS_S)
        if late:
            _log.warning("%d tasks of agents could not be stopped and still run", len(late))
        for task in tasks - late:
            if not task.cancelled() and task.exception() is not None:
                context = {"message": "A task of an agent failed while it was stopped"}
                context |= {"task": task, "exception": task.exception()}
                self._loop.call_exception_handler(context)
        # Threads that still run may hang, so the next run gets a new executor.
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = ThreadPoolExecutor(thread_name_prefix="agl-agents")
        self._loop.set_default_executor(self._executor)


class _Shared:
    """Holder of the loop of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: AgentLoop | None = None
        self._users = 0

    def peek(self) -> AgentLoop | None:
        loop = self._loop
        return loop if loop is not None and loop.process == os.getpid() else None

    def get(self) -> AgentLoop:
        with self._lock:
            loop = self.peek()
            if loop is None:
                loop = self._loop = AgentLoop()
            return loop

    def replace(self, loop: AgentLoop) -> None:
        """Move later calls, and calls that have not begun, to another loop."""
        with self._lock:
            if self._loop is not loop:
                return
            self._loop = None
        for call in loop.retire():
            self.get().submit(call)

    @contextlib.contextmanager
    def used(self) -> Generator[None, None, None]:
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1

    @property
    def idle(self) -> bool:
        return not self._users


_SHARED: Final = _Shared()


def agent_loop() -> AgentLoop | None:
    """Return the loop of this process; None before the first coroutine."""
    return _SHARED.peek()


def replace_loop(loop: AgentLoop) -> None:
    """Replace a loop that stays blocked; calls that began on it stay on it."""
    _SHARED.replace(loop)


@contextlib.asynccontextmanager
async def cleared_after() -> AsyncGenerator[None, None]:
    """Stop remaining tasks of user code on the loop when its last user exits this context."""
    try:
        with _SHARED.used():
            yield
    finally:
        loop = _SHARED.peek()
        if loop is not None and _SHARED.idle:
            try:
                await loop.clear()
            except TimeoutError:
                replace_loop(loop)


async def on_agent_loop(
    function: Callable[..., Awaitable[Any]],
    *arguments: Any,
    yielded: Callable[[], None] | None = None,
) -> UserResult:
    """Call and await user code on the agents' loop, with a copy of the current context.

    Cancelling this coroutine cancels the call.

    Args:
        function: A coroutine function, or another function that returns an awaitable.
        arguments: Arguments of `function`.
        yielded: Called on the current loop after the first step of the coroutine.
    """
    call = LoopCall(function, arguments, yielded)
    calls = watched()
    if calls is not None:
        calls.append(call)
    _SHARED.get().submit(call)
    try:
        await asyncio.wait({call.ended})  # a cancellation does not cancel `ended`
    except asyncio.CancelledError:
        if call.loop is not None:
            call.loop.cancel(call)
        raise
    return call.ended.result()


def cancelled_inside(error: asyncio.CancelledError | None) -> AgentError:
    """Return the failure of an attempt whose code cancels its own coroutine."""
    failure = AgentError("The agent's coroutine was cancelled from inside: let it return or raise")
    failure.__cause__ = error
    return failure


def _waits_for_events(frames: list[tuple[FrameType, int]]) -> bool:
    """Return whether the loop is idle and only waits for CPU time to respond."""
    outer, inner = frames[0][0].f_code, frames[-1][0].f_code
    return inner.co_filename == selectors.__file__ and not outer.co_flags & inspect.CO_COROUTINE


def _frames_of_coroutine(frame: FrameType | None) -> list[tuple[FrameType, int]]:
    """Return the frames from the user's innermost coroutine to the blocking call, outermost first.

    Without a coroutine of the user, from a library's innermost one; without either, all frames.
    """
    frames: list[tuple[FrameType, int]] = []
    innermost = 0
    while frame is not None:
        code = frame.f_code
        if "importlib" not in code.co_filename:
            frames.append((frame, frame.f_lineno))
            if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
                if not code.co_filename.startswith(_LIBRARIES):
                    return frames[::-1]
                innermost = innermost or len(frames)
        frame = frame.f_back
    return frames[: innermost or None][::-1]

"""Run synchronous user code: each call in its own daemon thread."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Generator
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class UserResult:
    """The result or the exception of user code, as a value that is safe to pass to the event loop.

    A `SystemExit` or `KeyboardInterrupt` raised by a task would stop the whole event loop, and a
    future does not accept a `StopIteration`.
    """

    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class ThreadCall:
    """One call in a thread."""

    remnant: threading.Thread
    ended: asyncio.Future[UserResult]
    """Done when the function has ended; cancelling the caller does not change it."""


class UserCall(Protocol):
    """A call of user code that runs in a thread or on the agents' event loop."""

    @property
    def ended(self) -> asyncio.Future[UserResult]:
        """Done when the code has ended; cancelling the caller does not change it."""
        ...

    @property
    def remnant(self) -> threading.Thread | asyncio.Task[Any] | None:
        """The thread or task that is left running if it cannot be stopped; None if none began."""
        ...


_watched: ContextVar[list[UserCall] | None] = ContextVar("agl_watched_calls", default=None)


def watched() -> list[UserCall] | None:
    """Return the list that collects the calls in this context; None without one."""
    return _watched.get()


def unwatched() -> None:
    """Stop collecting calls in this context."""
    _watched.set(None)


@contextlib.contextmanager
def watch_calls() -> Generator[list[UserCall], None, None]:
    """Collect the calls of user code in the block, and in tasks that the block creates."""
    calls: list[UserCall] = []
    token = _watched.set(calls)
    try:
        yield calls
    finally:
        _watched.reset(token)


async def in_thread(function: Callable[..., Any], *arguments: Any, name: str) -> UserResult:
    """Call a synchronous function in a new thread, with a copy of the current context.

    Uses a thread per call, not a pool: a pool's threads are joined when the loop or the interpreter
    ends, so a hanging one would hang the program, and it would occupy a place in the pool. If the
    caller is cancelled, the thread continues.

    Args:
        function: The function to call.
        arguments: Its positional arguments.
        name: Name of the thread.
    """
    loop, process = asyncio.get_running_loop(), os.getpid()
    ended: asyncio.Future[UserResult] = loop.create_future()
    context = copy_context()

    def work() -> None:
        try:
            outcome = UserResult(context.run(function, *arguments))
        except BaseException as error:  # noqa: BLE001  rollout zone: recorded as data
            outcome = UserResult(error=error)
        end_fork(process, outcome)
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            loop.call_soon_threadsafe(ended.set_result, outcome)

    thread = threading.Thread(target=work, name=name, daemon=True)
    calls = watched()
    if calls is not None:
        calls.append(ThreadCall(thread, ended))
    thread.start()
    await asyncio.wait({ended})  # a cancellation does not cancel `ended`
    return ended.result()


def end_fork(process: int, outcome: UserResult) -> None:
    """Exit if this process is a fork that user code made and returned from.

    It shares sockets and files with its parent, which continues, so it must not answer or store.

    Args:
        process: The id of the process that called the user code.
        outcome: The outcome of the user code in this process.
    """
    if os.getpid() != process:
        os._exit(0 if outcome.error is None else 1)


def is_async(function: Any) -> bool:
    """Return whether calling `function`, which may be a callable object, returns a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  the method, not whether there is one
    )

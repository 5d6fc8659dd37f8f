"""User code that is no coroutine: each call in a daemon thread of its own."""

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
class Outcome:
    """What user code gave back or raised; a value, so that no exception runs loose on the loop.

    A `SystemExit` or `KeyboardInterrupt` that leaves a task would stop the whole event loop, and a
    future refuses to carry a `StopIteration`.
    """

    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class ThreadCall:
    """One call in a thread."""

    remnant: threading.Thread
    ended: asyncio.Future[Outcome]
    """Not done while the function runs, also after its caller was cancelled."""


class UserCall(Protocol):
    """A call of user code that runs elsewhere: in a thread, or on the agents' loop."""

    @property
    def ended(self) -> asyncio.Future[Outcome]:
        """Not done while the code runs, also after its caller was cancelled."""
        ...

    @property
    def remnant(self) -> threading.Thread | asyncio.Task[Any] | None:
        """What is left to itself when it cannot be stopped; None if it never began."""
        ...


_watched: ContextVar[list[UserCall] | None] = ContextVar("agl_watched_calls", default=None)


def watched() -> list[UserCall] | None:
    """Where calls made here are collected."""
    return _watched.get()


def unwatched() -> None:
    """Collect no calls in this context from now on."""
    _watched.set(None)


@contextlib.contextmanager
def watch_calls() -> Generator[list[UserCall], None, None]:
    """Collect the calls of user code made here and in tasks created here, as they are made."""
    calls: list[UserCall] = []
    token = _watched.set(calls)
    try:
        yield calls
    finally:
        _watched.reset(token)


async def in_thread(function: Callable[..., Any], *arguments: Any, name: str) -> Outcome:
    """Call a plain function in a thread, with a copy of the current context.

    A thread per call, not a pool: a pool's threads are joined when the loop or the interpreter
    ends, so one that hangs would hang the program, and it would keep its place in the pool. A
    caller who is cancelled leaves the thread to itself.

    Args:
        name: Of the thread.
    """
    loop, process = asyncio.get_running_loop(), os.getpid()
    ended: asyncio.Future[Outcome] = loop.create_future()
    context = copy_context()

    def work() -> None:
        try:
            outcome = Outcome(context.run(function, *arguments))
        except BaseException as error:  # noqa: BLE001  rollout zone: recorded as data
            outcome = Outcome(error=error)
        end_fork(process, outcome)
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            loop.call_soon_threadsafe(ended.set_result, outcome)

    thread = threading.Thread(target=work, name=name, daemon=True)
    calls = watched()
    if calls is not None:
        calls.append(ThreadCall(thread, ended))
    thread.start()
    await asyncio.wait({ended})  # which a cancellation leaves as it is
    return ended.result()


def end_fork(process: int, outcome: Outcome) -> None:
    """End this process if user code made it and it returned: its parent continues.

    It shares the parent's sockets and files, and would answer and store in its name.

    Args:
        process: The id of the process that called the user code.
        outcome: What came back.
    """
    if os.getpid() != process:
        os._exit(0 if outcome.error is None else 1)


def is_async(function: Any) -> bool:
    """Return whether calling `function` gives a coroutine, for callable objects too."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  the method, not whether there is one
    )

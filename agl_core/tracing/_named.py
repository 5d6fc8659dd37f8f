"""Named operations and agents, as context managers and decorators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from agl_core.tracing._context import active
from agl_core.tracing._spans import SpanScope, SpanStart, open_span
from agl_core.tracing._values import text
from agl_core.tracing._wrapping import guarded
from agl_core.types import Scope, SpanKind

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(slots=True, eq=False)
class _Entry:
    """One ``with`` block that is running."""

    named: Named
    span: SpanScope | None
    left: bool = False


_ENTRIES: Final[ContextVar[tuple[_Entry, ...]]] = ContextVar("agl_entries", default=())
"""The ``with`` blocks around this code and around the start of its task, outermost first."""


class Named:
    """Opens a span and its scope around a ``with`` block, or around every call of a function.

    As a decorator it takes plain, async, generator and async generator functions; a generator's
    scope is current only while its body runs. Exceptions pass unchanged and end the span as an
    error. Outside a rollout it does nothing. One object can be used for any number of blocks,
    nested or concurrent in several tasks and threads.
    """

    def __init__(self, start: SpanStart) -> None:
        """Set the start of every span; `operation` and `agent_scope` make these objects."""
        self._start = start
        self._entries: list[_Entry] = []

    def __enter__(self) -> Scope | None:
        """Open the span; return its scope, or None outside a rollout."""
        span = self._open()
        entry = _Entry(self, span.activate() if span is not None else None)
        self._entries.append(entry)
        _ENTRIES.set((*_open_entries(), entry))
        return entry.span

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        here = [entry for entry in _open_entries() if entry.named is self]
        # A generator may be closed in another context than the one that entered its block.
        entry = (here or self._entries)[-1]
        entry.left = True
        self._entries.remove(entry)
        _ENTRIES.set(_open_entries())
        if entry.span is not None:
            entry.span.end(error)

    def __call__(self, function: _Function) -> _Function:
        """Decorate `function`; each call opens its own span."""
        if inspect.isasyncgenfunction(function):
            wrapped = self._async_generator(function)
        elif inspect.isgeneratorfunction(function):
            wrapped = self._generator(function)
        elif inspect.iscoroutinefunction(function):
            wrapped = self._coroutine(function)
        else:
            wrapped = self._plain(function)
        return cast("_Function", functools.wraps(function)(wrapped))

    @guarded()
    def _open(self) -> SpanScope | None:
        context = active()
        return open_span(context.recorder, self._start) if context is not None else None

    def _plain(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._open() or nullcontext():
                return function(*args, **kwargs)

        return call

    def _coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            with self._open() or nullcontext():
                return await function(*args, **kwargs)

        return call

    def _generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            inner: Generator[Any, Any, Any] = function(*args, **kwargs)
            span = self._open()
            if span is None:
                return (yield from inner)
            result: Any = yield from _steps(inner, span)
            return result

        return call

    def _async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # An explicit loop, because `async for` would not pass asend and athrow through.
        async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            inner: AsyncGenerator[Any, Any] = function(*args, **kwargs)
            span = self._open()
            step = span.running() if span is not None else nullcontext()
            resume: Callable[[Any], Any] = inner.asend
            argument: Any = None
            try:
                while True:
                    try:
                        with step:
                            item = await resume(argument)
                    except StopAsyncIteration:
                        break
                    try:
                        resume, argument = inner.asend, (yield item)
                    except GeneratorExit:
                        await inner.aclose()
                        raise
                    except BaseException as error:  # noqa: BLE001  handed to the body
                        resume, argument = inner.athrow, error
            except BaseException as error:
                if span is not None:
                    span.end(error)
                raise
            if span is not None:
                span.end()

        return call


def _open_entries() -> tuple[_Entry, ...]:
    return tuple(entry for entry in _ENTRIES.get() if not entry.left)


def _steps(inner: Generator[Any, Any, Any], span: SpanScope) -> Generator[Any, Any, Any]:
    """Drive a generator with its scope current in each step; send, throw and close pass through."""
    resume: Callable[[Any], Any] = inner.send
    argument: Any = None
    step = span.running()
    try:
        while True:
            try:
                with step:
                    item = resume(argument)
            except StopIteration as stop:
                span.end()
                return stop.value
            try:
                resume, argument = inner.send, (yield item)
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as error:  # noqa: BLE001  handed to the body
                resume, argument = inner.throw, error
    except BaseException as error:
        span.end(error)
        raise


def operation(name: str, **attributes: Any) -> Named:
    """Name a part of the program, in a ``with`` statement or as a decorator.

    It adds a span and does not change the agent: calls inside belong to the agent around it.

    Args:
        name: The span's name.
        attributes: JSON values of the span.
    """
    title = text(name)
    return Named(SpanStart(SpanKind.OPERATION, title, attributes=attributes))


def agent_scope(name: str, *, trainable: bool = True, run_id: str | None = None) -> Named:
    """Name the agent of the calls inside, for programs without a framework.

    Args:
        name: The agent, as in ``agents=[...]``.
        trainable: False excludes the calls inside from training, even if the agent is selected.
        run_id: An earlier run of the agent to continue. By default each use begins a new run,
            except inside a scope of the same agent, whose run it continues.
    """
    agent, run = text(name), text(run_id) if run_id else None
    return Named(
        SpanStart(SpanKind.AGENT, agent, agent=agent, agent_run_id=run, trainable=trainable)
    )

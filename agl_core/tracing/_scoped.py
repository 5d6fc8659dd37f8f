"""Named pieces of work and named agents: context managers that are decorators too."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from agl_core.tracing._context import active
from agl_core.tracing._guard import guarded
from agl_core.tracing._recorder import Recorder
from agl_core.tracing._scopes import ScopeFrame, close_scope, open_scope
from agl_core.tracing._values import text
from agl_core.types import Scope, ScopeKind, SpanKind

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Work:
    """One open span with its scope."""

    __slots__ = ("recorder", "scope")

    def __init__(self, recorder: Recorder, scope: Scope) -> None:
        self.recorder = recorder
        self.scope = scope

    @guarded()
    def end(self, error: BaseException | None) -> None:
        close_scope(self.scope)
        self.recorder.end_with(self.scope.span_id, error)


@dataclass(slots=True, eq=False)
class _Entry:
    """One ``with`` block that is being run."""

    scoped: Scoped
    work: _Work | None
    left: bool = False


_ENTRIES: Final[ContextVar[tuple[_Entry, ...]]] = ContextVar("agl_entries", default=())
"""The ``with`` blocks around this code, outermost first, those it was started from included."""


class Scoped:
    """Opens a span and a scope around a ``with`` block, or around every call of a function.

    As a decorator it takes plain, async, generator and async generator functions; a generator's
    scope is current only while its own body runs. Exceptions pass unchanged and end the span as an
    error. Outside a rollout it does nothing. One object serves any number of blocks, nested or at
    the same time in several tasks and threads.
    """

    def __init__(
        self,
        kind: ScopeKind,
        name: str,
        *,
        trainable: bool = True,
        run_id: str | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> None:
        """Prepare; use `operation` or `agent_scope`, which say what each is for."""
        self._kind: ScopeKind = kind
        self._name = text(name)
        self._trainable = trainable
        self._run_id = text(run_id) if run_id else None
        self._attributes = attributes or {}
        self._entries: list[_Entry] = []

    def __enter__(self) -> Scope | None:
        """Begin; gives the scope, or None outside a rollout."""
        entry = _Entry(self, self._begin())
        self._entries.append(entry)
        _ENTRIES.set((*_open_entries(), entry))
        return entry.work.scope if entry.work is not None else None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        here = [entry for entry in _open_entries() if entry.scoped is self]
        # A generator may be closed in another context than the one in which its block began.
        entry = (here or self._entries)[-1]
        entry.left = True
        self._entries.remove(entry)
        _ENTRIES.set(_open_entries())
        _end(entry.work, error)

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
    def _begin(self) -> _Work | None:
        context = active()
        if context is None:
            return None
        recorder = context.recorder
        agent = self._name if self._kind == "agent" else None
        span_id = recorder.start(
            SpanKind.AGENT if agent is not None else SpanKind.OPERATION,
            self._name,
            agent=agent,
            agent_run_id=self._run_id,
            attributes=self._attributes,
        )
        scope = open_scope(
            self._kind,
            span_id=span_id,
            agent=agent,
            agent_run_id=self._run_id,
            trainable=self._trainable,
        )
        return _Work(recorder, scope)

    def _plain(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            work = self._begin()
            if work is None:
                return function(*args, **kwargs)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                work.end(error)
                raise
            work.end(None)
            return result

        return call

    def _coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            work = self._begin()
            if work is None:
                return await function(*args, **kwargs)
            try:
                result = await function(*args, **kwargs)
            except BaseException as error:
                work.end(error)
                raise
            work.end(None)
            return result

        return call

    def _generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            inner: Generator[Any, Any, Any] = function(*args, **kwargs)
            frame = ScopeFrame()
            with frame.running():
                work = self._begin()
            if work is None:
                return (yield from inner)
            result: Any = yield from _steps(inner, work, frame)
            return result

        return call

    def _async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # The loop stands here and not behind `async for`, which would not pass asend and athrow.
        async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            inner: AsyncGenerator[Any, Any] = function(*args, **kwargs)
            frame = ScopeFrame()
            with frame.running():
                work = self._begin()
            resume: Callable[[Any], Any] = inner.asend
            argument: Any = None
            try:
                while True:
                    try:
                        with frame.running():
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
                _end(work, error)
                raise
            _end(work, None)

        return call


def _open_entries() -> tuple[_Entry, ...]:
    return tuple(entry for entry in _ENTRIES.get() if not entry.left)


def _end(work: _Work | None, error: BaseException | None) -> None:
    if work is not None:
        work.end(error)


def _steps(
    inner: Generator[Any, Any, Any], work: _Work, frame: ScopeFrame
) -> Generator[Any, Any, Any]:
    """Drive a generator with its own scope current in each step; the full protocol passes."""
    resume: Callable[[Any], Any] = inner.send
    argument: Any = None
    try:
        while True:
            try:
                with frame.running():
                    item = resume(argument)
            except StopIteration as stop:
                work.end(None)
                return stop.value
            try:
                resume, argument = inner.send, (yield item)
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as error:  # noqa: BLE001  handed to the body
                resume, argument = inner.throw, error
    except BaseException as error:
        work.end(error)
        raise


def operation(name: str, **attributes: Any) -> Scoped:
    """Name a piece of the program, in a ``with`` statement or as a decorator.

    It only adds structure; the agent around it goes on speaking inside.

    Args:
        name: The span's name.
        attributes: JSON values kept on the span.
    """
    return Scoped("operation", name, attributes=attributes)


def agent_scope(name: str, *, trainable: bool = True, run_id: str | None = None) -> Scoped:
    """Name the agent that speaks inside, where no framework does.

    Args:
        name: The agent, as in ``agents=[...]``.
        trainable: False keeps the calls inside out of training, whatever agents are chosen.
        run_id: Continues an earlier run of the agent. By default each use is a run of its own,
            unless it lies inside a scope of the same agent, whose run it continues.
    """
    return Scoped("agent", name, trainable=trainable, run_id=run_id)

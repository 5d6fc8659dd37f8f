"""Wrappers that observe calls of the framework's functions and do not change their results."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from agl_core.tracing import ScopeFrame, SpanScope, Tracer, Wrap, active, guarded

FRAMEWORK: Final = "autogen"
TRACER: Final = Tracer(FRAMEWORK)
_DONE: Final = object()


class Watcher:
    """Observes one call of a function; its public methods are telemetry and never raise."""

    def __init__(self, span: SpanScope | None = None) -> None:
        """Make a watcher; the scope of `span`, if given, is current while the function runs."""
        self._span: SpanScope | None = span
        self._frame = span or ScopeFrame()

    def running(self) -> AbstractContextManager[object]:
        """Return a context manager for each step of the function."""
        return self._frame.running()

    @guarded(FRAMEWORK)
    def saw(self, item: Any) -> None:
        """Observe an item that the function returned or yielded."""
        self._saw(item)

    @guarded(FRAMEWORK)
    def end(self, error: BaseException | None) -> None:
        """Observe the end of the function, with its exception if it raised one."""
        self._end(error)

    def _saw(self, item: Any) -> None:
        del item

    def _end(self, error: BaseException | None) -> None:
        if self._span is not None:
            self._span.end(error)


Begin = Callable[..., Watcher | None]
"""Called with the function's arguments; returns None if the call is not observed."""


def coroutine(begin: Begin) -> Wrap:
    """Return a wrapper for an async method."""

    def wrap(original: Callable[..., Any], live: Callable[[], bool]) -> Callable[..., Any]:
        async def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
            watcher = begin(owner, *args, **kwargs) if live() else None
            if watcher is None:
                return await original(owner, *args, **kwargs)
            try:
                with watcher.running():
                    result = await original(owner, *args, **kwargs)
            except BaseException as error:
                watcher.end(error)
                raise
            watcher.saw(result)
            watcher.end(None)
            return result

        return call

    return wrap


def generator(begin: Begin) -> Wrap:
    """Return a wrapper for an async generator; outside a rollout it returns the original one."""

    def wrap(original: Callable[..., Any], live: Callable[[], bool]) -> Callable[..., Any]:
        def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
            items = original(owner, *args, **kwargs)
            if not live() or active() is None:
                return items
            return _watched(items, lambda: begin(owner, *args, **kwargs) or Watcher())

        return call

    return wrap


async def _watched(items: Any, begin: Callable[[], Watcher]) -> AsyncGenerator[Any, None]:
    watcher = begin()
    inside = watcher.running()
    try:
        while True:
            with inside:
                item = await anext(items, _DONE)
            if item is _DONE:
                break
            watcher.saw(item)
            yield item
    except BaseException as error:
        await _leave(items, watcher, error)
        raise
    watcher.end(None)


async def _leave(items: Any, watcher: Watcher, error: BaseException) -> None:
    """Close the generator; an exception that it raises goes to the caller."""
    try:
        if (close := getattr(items, "aclose", None)) is not None:
            with watcher.running():
                await close()
    except BaseException as failed:
        error = failed
        raise
    finally:
        watcher.end(error)

"""Functions of the framework, watched: what goes in and comes out passes unchanged."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from agl_autogen._work import Watcher
from agl_core.tracing import ScopeFrame, Wrap, active

Begin = Callable[..., Watcher | None]
"""Called as the function is; None where there is nothing to watch."""
_DONE: Final = object()


def coroutine(begin: Begin) -> Wrap:
    """Watch an async method: what `begin` opens is current while it runs."""

    def wrap(original: Callable[..., Any], live: Callable[[], bool]) -> Callable[..., Any]:
        async def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
            watcher = begin(owner, *args, **kwargs) if live() else None
            if watcher is None:
                return await original(owner, *args, **kwargs)
            try:
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
    """Watch an async generator: what `begin` opens is current while its own body runs.

    Outside a rollout the caller gets the generator itself.
    """

    def wrap(original: Callable[..., Any], live: Callable[[], bool]) -> Callable[..., Any]:
        def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
            items = original(owner, *args, **kwargs)
            if not live() or active() is None:
                return items
            return _watched(items, lambda: begin(owner, *args, **kwargs))

        return call

    return wrap


async def _watched(items: Any, begin: Callable[[], Watcher | None]) -> AsyncGenerator[Any, None]:
    frame = ScopeFrame()
    with frame.running():
        watcher = begin()
    try:
        while True:
            with frame.running():
                item = await anext(items, _DONE)
                if item is _DONE:
                    break
                if watcher is not None:
                    watcher.saw(item)
            yield item
    except BaseException as error:
        with frame.running():
            await _leave(items, watcher, error)
        raise
    with frame.running():
        _end(watcher, None)


async def _leave(items: Any, watcher: Watcher | None, error: BaseException) -> None:
    """Close what was watched; what goes wrong there is what its caller gets."""
    try:
        if (close := getattr(items, "aclose", None)) is not None:
            await close()
    except BaseException as failed:
        error = failed
        raise
    finally:
        _end(watcher, error)


def _end(watcher: Watcher | None, error: BaseException | None) -> None:
    if watcher is not None:
        watcher.end(error)

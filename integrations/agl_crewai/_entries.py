"""Wrappers around CrewAI's entry points that close spans for which CrewAI emits no end event.

A timeout, a cancellation and every other `BaseException` that is not an `Exception` leave CrewAI
without an event. The open spans would stay current in the task or thread that continues.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, cast

import crewai
from crewai import Agent, Crew, Task, lite_agent
from crewai.flow import Flow
from crewai.llms.providers.openai import completion

from agl_core.errors import ConfigError
from agl_core.tracing import Patch
from agl_crewai._frames import leave, standing

_LITE_AGENT: Final = cast("Any", lite_agent).LiteAgent
"""Deprecated, but still in use."""
_ENTRIES: Final[tuple[tuple[Any, str, tuple[str, ...]], ...]] = (
    (Crew, "kickoff", ("inputs",)),
    (Crew, "akickoff", ("inputs",)),
    (Agent, "kickoff", ("messages",)),
    (Agent, "kickoff_async", ("messages",)),
    (Agent, "execute_task", ("task",)),
    (Agent, "aexecute_task", ("task",)),
    (Task, "execute_sync", ("agent",)),
    (Task, "aexecute_sync", ("agent",)),
    (_LITE_AGENT, "kickoff", ("messages",)),
    (Flow, "kickoff_async", ("inputs",)),
    (Flow, "resume_async", ("feedback",)),
)
"""Owner, function, and parameters by which the expected function is recognized."""
_CALL: Final = "llm_call_context"
_DEFINES_CALL: Final = "crewai.llms.base_llm"


class EntryPoints:
    """Closes, when a call into CrewAI returns or raises, the frames that the call left open."""

    def __init__(self) -> None:
        self._patches: list[Patch] = []

    def install(self) -> None:
        """Wrap every entry point.

        Raises:
            ConfigError: this version lacks one, or its parameters differ.
        """
        try:
            for owner, name, parameters in _ENTRIES:
                _require(owner, name)
                self._add(Patch(crewai, owner, name, _watched, parameters=parameters))
            for module in _modules_that_call():
                # `Patch` takes a class, but only reads and sets an attribute of it.
                owner = cast("type[Any]", module)
                self._add(Patch(crewai, owner, _CALL, _watched_call, parameters=None))
        except ConfigError:
            self.remove()
            raise

    def remove(self) -> None:
        """Restore the original functions."""
        while self._patches:
            self._patches.pop().remove()

    def _add(self, patch: Patch) -> None:
        patch.install()
        self._patches.append(patch)


def _require(owner: Any, name: str) -> None:
    if not hasattr(owner, name):
        raise ConfigError(
            f"crewai {crewai.__version__} has no {owner.__name__}.{name}, where agl-core sees an "
            f"exception leave: use a version that has it, or a newer agl-core"
        )


def _modules_that_call() -> list[Any]:
    """Return the loaded CrewAI modules with `_CALL`: each one that imported it has its own name."""
    _require(sys.modules[_DEFINES_CALL], _CALL)
    _require(completion, _CALL)
    loaded = [each for name, each in sys.modules.items() if name.startswith("crewai.")]
    return [module for module in loaded if _CALL in getattr(module, "__dict__", {})]


def _watched(original: Callable[..., Any], live: Callable[[], bool]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(original):

        async def acall(*args: Any, **kwargs: Any) -> Any:
            with _closing(live):
                return await original(*args, **kwargs)

        return acall

    def call(*args: Any, **kwargs: Any) -> Any:
        with _closing(live):
            result = original(*args, **kwargs)
        # If other code wrapped the async function, its wrapper may be a plain function.
        return _awaited(result, live) if inspect.iscoroutine(result) else result

    return call


async def _awaited(running: Awaitable[Any], live: Callable[[], bool]) -> Any:
    with _closing(live):
        return await running


def _watched_call(original: Callable[..., Any], live: Callable[[], bool]) -> Callable[..., Any]:
    """Wrap the context manager in which CrewAI's models make one call, sync or async."""

    @contextmanager
    def call_context(*args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        with _closing(live), original(*args, **kwargs) as call_id:
            yield call_id

    return call_context


@contextmanager
def _closing(live: Callable[[], bool]) -> Generator[None, None, None]:
    before = standing() if live() else None
    try:
        yield
    except BaseException as error:
        leave(before, error)
        raise
    leave(before, None)

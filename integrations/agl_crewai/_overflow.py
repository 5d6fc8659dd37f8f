"""Make a prompt that exceeds the model's context end the attempt, not the process.

An agent that may not summarize its history raises ``SystemExit`` then, which ends the event loop
and every rollout in it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import crewai
from crewai import lite_agent
from crewai.agents import agent_executor
from crewai.hooks.dispatch import HookAborted

from agl_core.errors import ConfigError, ContextOverflowError
from agl_core.tracing import active

_NAME: Final = "handle_context_length"
_ALLOWED: Final = "respect_context_window"
_USERS: Final = (agent_executor, lite_agent)
"""Modules that import the function `_NAME`."""


class PromptOverflowError(ContextOverflowError, HookAborted):
    """A prompt is longer than the model's context, or than its budget.

    A `HookAborted` ends an agent immediately; after any other exception CrewAI runs the agent again
    with the same prompt.
    """

    def __init__(self, message: str) -> None:
        """Make the error.

        Args:
            message: Which prompt does not fit.
        """
        HookAborted.__init__(self, message, source="agl")


class OverflowGuard:
    """Raises `PromptOverflowError` instead of ``SystemExit``, inside rollouts only."""

    def __init__(self) -> None:
        self._live = False
        self._replaced: list[tuple[ModuleType, Any, Any]] = []

    def install(self) -> None:
        """Wrap the function that raises ``SystemExit``.

        Raises:
            ConfigError: this version does not have the function.
        """
        self._live = True
        for module in _USERS:
            original = getattr(module, _NAME, None)
            if original is None or _ALLOWED not in inspect.signature(original).parameters:
                self.remove()
                raise ConfigError(
                    f"crewai {crewai.__version__} has no {_NAME}({_ALLOWED}=...) in {module.__file__}, "
                    f"where prompts that are too long are caught: use a version that has it, or a "
                    f"newer agl-core"
                )
            guard = self._guarding(original)
            setattr(module, _NAME, guard)
            self._replaced.append((module, original, guard))

    def remove(self) -> None:
        """Restore the originals; if other code wrapped a guard, it stays and calls the original."""
        self._live = False
        while self._replaced:
            module, original, guard = self._replaced.pop()
            if getattr(module, _NAME) is guard:
                setattr(module, _NAME, original)

    def _guarding(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def handle_context_length(*args: Any, **kwargs: Any) -> None:
            if self._live and active() is not None:
                given = signature.bind(*args, **kwargs).arguments
                if not given[_ALLOWED]:
                    raise PromptOverflowError(
                        f"A prompt is longer than the context of the model "
                        f"{_model(given.get('llm'))!r}: register agl_crewai.PromptBudgetHook, ask "
                        f"for less, or serve a longer context"
                    )
            original(*args, **kwargs)

        return handle_context_length


def _model(llm: Any) -> str:
    return str(getattr(llm, "model", llm))

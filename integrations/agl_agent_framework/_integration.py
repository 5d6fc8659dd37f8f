"""Zero-code mode: every agent run gets the middleware while the integration is attached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import agent_framework
from agent_framework import AgentMiddlewareLayer

from agl_agent_framework._middleware import AglMiddleware
from agl_agent_framework._spans import FRAMEWORK
from agl_core.tracing import Patch, active
from agl_core.types import Scope


class AgentFrameworkIntegration:
    """Records all agents of Microsoft Agent Framework in this process."""

    name = FRAMEWORK

    def __init__(self) -> None:
        self._patch: Patch | None = None

    def attach(self) -> None:
        """Add an `AglMiddleware` to the public parameter ``middleware`` of every run.

        The framework has no middleware list for all agents.

        Raises:
            ConfigError: ``run`` of this version has no parameter ``middleware``.
        """
        if self._patch is None:
            self._patch = Patch(
                agent_framework, AgentMiddlewareLayer, "run", _wrap, parameters=("middleware",)
            )
            self._patch.install()

    def detach(self) -> None:
        """Restore the original function."""
        if self._patch is not None:
            self._patch.remove()
            self._patch = None

    def identity(self) -> Scope | None:
        """Return None: the scope is current at each request and in each step of a stream."""
        return None


def _wrap(original: Callable[..., Any], live: Callable[[], bool]) -> Callable[..., Any]:
    ours = AglMiddleware()

    def run(agent: Any, *args: Any, **kwargs: Any) -> Any:
        if live() and active() is not None:
            kwargs["middleware"] = _with(ours, kwargs.get("middleware"))
        return original(agent, *args, **kwargs)

    return run


def _with(ours: AglMiddleware, given: Any) -> Any:
    if given is None:
        return [ours]
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        return [ours, *cast("Sequence[Any]", given)]
    return given  # the framework raises its own error for it

"""Zero-code mode for version 2: every agent that replies gets the middleware while attached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import agentscope
from agentscope.agent import Agent

from agl_agentscope._identity import ByIdentity
from agl_agentscope._spans import FRAMEWORK
from agl_agentscope._v2.middleware import AglMiddleware
from agl_core.errors import ConfigError
from agl_core.tracing import Patch, active, guarded

_LISTS: Final = (
    "_reply_middlewares",
    "_acting_middlewares",
    "_model_call_middlewares",
    "_compress_context_middlewares",
)
"""An agent's private lists of middleware, one for each hook; no public function adds to them."""


class MiddlewareOfAll:
    """Adds an `AglMiddleware` to every agent without one, also to those made before `attach`."""

    def __init__(self) -> None:
        self._patches: list[Patch] = []
        self._given: ByIdentity[None] = ByIdentity()
        self._ours = AglMiddleware(lambda: bool(self._patches))

    def attach(self) -> None:
        """Wrap the two public functions by which agents reply.

        Raises:
            ConfigError: this version's functions have other parameters.
        """
        if self._patches:
            return
        patches = [
            Patch(agentscope, Agent, "reply", self._awaited, parameters=("inputs",)),
            Patch(agentscope, Agent, "reply_stream", self._streamed, parameters=("inputs",)),
        ]
        for patch in patches:
            patch.install()
        self._patches = patches

    def detach(self) -> None:
        """Restore the original functions, and remove the middleware from agents."""
        while self._patches:
            self._patches.pop().remove()
        for agent in self._given.owners():
            for name in _LISTS:
                kept = [each for each in getattr(agent, name) if each is not self._ours]
                setattr(agent, name, kept)
        self._given.clear()

    def _awaited(
        self, original: Callable[..., Any], live: Callable[[], bool]
    ) -> Callable[..., Any]:
        async def reply(agent: Agent, *args: Any, **kwargs: Any) -> Any:
            if live():
                self._give(agent)
            return await original(agent, *args, **kwargs)

        return reply

    def _streamed(
        self, original: Callable[..., Any], live: Callable[[], bool]
    ) -> Callable[..., Any]:
        def reply_stream(agent: Agent, *args: Any, **kwargs: Any) -> Any:
            if live():
                self._give(agent)
            return original(agent, *args, **kwargs)

        return reply_stream

    @guarded(FRAMEWORK)
    def _give(self, agent: Agent) -> None:
        if active() is None:
            return
        lists: list[Any] = [getattr(agent, name, None) for name in _LISTS]
        if not all(isinstance(each, list) for each in lists):
            raise ConfigError(
                f"agentscope {agentscope.__version__} keeps its middleware in other places than "
                f"{', '.join(_LISTS)}: give agents AglMiddleware() yourself"
            )
        if any(isinstance(one, AglMiddleware) for each in lists for one in each):
            return
        self._given.get_or_make(agent, lambda: None)
        for each in lists:
            each.append(self._ours)

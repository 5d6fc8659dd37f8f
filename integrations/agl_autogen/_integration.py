"""Zero-code mode: wraps AutoGen's functions while the integration is attached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from threading import Lock
from typing import Any, Final

import autogen_agentchat
import autogen_core
from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import BaseAgent
from autogen_core.tools import BaseStreamTool, BaseTool, FunctionTool

from agl_autogen._agents import begin_handling, begin_team, begin_turn
from agl_autogen._calls import begin_call, begin_tool, in_context
from agl_autogen._speakers import speaking_here
from agl_autogen._watching import FRAMEWORK, coroutine, generator
from agl_core.tracing import Patch, Wrap, guarded
from agl_core.types import Scope

_TURNS: Final[dict[str, Wrap]] = {
    "on_messages": coroutine(begin_turn),
    "on_messages_stream": generator(begin_turn),
}
_TOOL: Final = ("args", "cancellation_token", "call_id")


class AutoGenIntegration:
    """Records AutoGen's core and agentchat agents and its OpenAI clients in this process."""

    name = FRAMEWORK

    def __init__(self) -> None:
        self._patches: list[Patch] = []
        self._covered: set[type[Any]] = set()
        self._lock = Lock()

    def attach(self) -> None:
        """Wrap the functions that README.md lists.

        Raises:
            ConfigError: one of them differs from that of the supported versions; none is wrapped.
        """
        if self._patches:
            return
        patches = [*_fixed(), self._on_new_agents()]
        for patch in patches:
            patch.install()
        self._patches = patches
        for kind in _kinds(BaseChatAgent):
            self._cover(kind)

    def detach(self) -> None:
        """Restore the original functions."""
        with self._lock:
            while self._patches:
                self._patches.pop().remove()
            self._covered.clear()

    def identity(self) -> Scope | None:
        """Return the scope of the core agent that handles a message; None if another is inside."""
        return speaking_here()

    def _on_new_agents(self) -> Patch:
        """Wrap ``__init__``, to find classes of agents that are defined after `attach`."""

        def wrap(original: Any, live: Any) -> Any:
            def init(agent: Any, *args: Any, **kwargs: Any) -> None:
                if live():
                    self._cover_all(agent.__class__.__mro__)
                original(agent, *args, **kwargs)

            return init

        return Patch(autogen_agentchat, BaseChatAgent, "__init__", wrap, parameters=None)

    @guarded(FRAMEWORK)
    def _cover_all(self, kinds: Iterable[type[Any]]) -> None:
        for each in kinds:
            if each not in self._covered and issubclass(each, BaseChatAgent):
                self._cover(each)

    def _cover(self, kind: type[Any]) -> None:
        """Wrap the methods of one class of agents that run a turn."""
        with self._lock:
            if kind in self._covered or not self._patches:
                return
            self._covered.add(kind)
            for name, wrap in _TURNS.items():
                function = vars(kind).get(name)
                if function is None or getattr(function, "__isabstractmethod__", False):
                    continue
                patch = Patch(autogen_agentchat, kind, name, wrap, parameters=None)
                patch.install()
                self._patches.append(patch)


def _fixed() -> Iterator[Patch]:
    yield Patch(
        autogen_core,
        BaseAgent,
        "on_message",
        coroutine(begin_handling),
        parameters=("message", "ctx"),
    )
    yield Patch(
        autogen_agentchat, BaseGroupChat, "run_stream", generator(begin_team), parameters=()
    )
    yield Patch(autogen_core, BaseTool, "run_json", coroutine(begin_tool), parameters=_TOOL)
    yield Patch(
        autogen_core, BaseStreamTool, "run_json_stream", generator(begin_tool), parameters=_TOOL
    )
    yield Patch(autogen_core, FunctionTool, "run", in_context, parameters=_TOOL[:2])
    if find_spec("autogen_ext") is not None and find_spec("openai") is not None:
        yield from _clients()


def _clients() -> Iterator[Patch]:
    """Patch the OpenAI clients; agl-core's HTTP layer records the requests of other clients."""
    import autogen_ext  # noqa: PLC0415  an optional package
    from autogen_ext.models.openai import BaseOpenAIChatCompletionClient as Client  # noqa: PLC0415

    yield Patch(autogen_ext, Client, "create", coroutine(begin_call), parameters=("messages",))
    yield Patch(
        autogen_ext, Client, "create_stream", generator(begin_call), parameters=("messages",)
    )


def _kinds(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)

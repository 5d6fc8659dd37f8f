"""Zero-code mode for version 1, which has no other mode: no hook of this version always runs.

Its class hooks do not run for an agent that is already replying, and they get copies of arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any, Final

import agentscope
from agentscope.agent import AgentBase, ReActAgent
from agentscope.memory import LongTermMemoryBase
from agentscope.model import ChatModelBase
from agentscope.pipeline import MsgHub
from agentscope.tool import Toolkit

from agl_agentscope._spans import CONTEXT, SUMMARIZER
from agl_agentscope._v1 import tools
from agl_agentscope._v1.hubs import Hubs, broadcasting
from agl_agentscope._v1.replies import Replies, said_by
from agl_agentscope._v1.thinking import splitting
from agl_agentscope._versions import EXTRAS
from agl_core.errors import ConfigError, pip_line
from agl_core.tracing import Patch, Wrap

_OTHERS: Final = (
    ("_retrieve_from_long_term_memory", CONTEXT, ("msg",)),
    ("_retrieve_from_knowledge", CONTEXT, ("msg",)),
    ("_compress_memory_if_needed", SUMMARIZER, ()),
)
"""Functions of `ReActAgent` that call a model, but not for the agent's answer."""


class WrapsOfAll:
    """Wraps the functions that README.md lists."""

    def __init__(self) -> None:
        self._patches: list[Patch] = []
        self._lock = Lock()
        self._known: set[tuple[type[Any], str]] = set()

    def attach(self) -> None:
        """Wrap the functions.

        Raises:
            ConfigError: this version lacks one, or its parameters differ.
        """
        if self._patches:
            return
        patches = [*self._of_all()]
        for patch in patches:
            patch.install()
        self._patches = patches

    def detach(self) -> None:
        """Restore the original functions, the last wrapped first."""
        with self._lock:
            while self._patches:
                self._patches.pop().remove()
            self._known.clear()

    def _of_all(self) -> Iterator[Patch]:
        hubs = Hubs()
        yield _patch(AgentBase, "__call__", Replies(self._prepare).wrap, None)
        yield _patch(AgentBase, "_broadcast_to_subscribers", broadcasting, ("msg",))
        yield _patch(MsgHub, "__aenter__", hubs.entering, ())
        yield _patch(MsgHub, "__aexit__", hubs.leaving, None)
        yield _patch(MsgHub, "broadcast", hubs.announcing, ("msg",))
        yield _patch(Toolkit, "call_tool_function", tools.recording, ("tool_call",))
        for name, who, parameters in _OTHERS:
            yield _patch(ReActAgent, name, said_by(who), parameters)

    def _prepare(self, agent: Any) -> None:
        """Wrap methods of the classes of an agent's model and memory: each class has its own."""
        model = getattr(agent, "model", None)
        if isinstance(model, ChatModelBase):
            self._wrap(type(model), "__call__", splitting)
        memory = getattr(agent, "long_term_memory", None)
        if isinstance(memory, LongTermMemoryBase):
            self._wrap(type(memory), "record", said_by(CONTEXT))

    def _wrap(self, owner: type[Any], name: str, wrap: Wrap) -> None:
        with self._lock:
            if (owner, name) in self._known or not self._patches:
                return
            self._known.add((owner, name))
            patch = _patch(owner, name, wrap, None)
            patch.install()
            self._patches.append(patch)


def _patch(
    owner: type[Any], name: str, wrap: Callable[..., Any], parameters: Sequence[str] | None
) -> Patch:
    if not hasattr(owner, name):
        raise ConfigError(
            f"agentscope {agentscope.__version__} has no {owner.__name__}.{name}, without which what "
            f"its agents do would be recorded wrongly: {pip_line(EXTRAS[1])}"
        )
    return Patch(agentscope, owner, name, wrap, parameters=parameters)

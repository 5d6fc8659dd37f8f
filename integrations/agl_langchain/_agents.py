"""Naming rules: pure functions that find the agent of a LangChain run.

A run inherits the metadata of the runs around it, so an agent begins only where the name *changes*.
The run with the new name is one invocation of the agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

OWNED_PREFIX: Final = "@"
"""Prefix of reserved names: agents of the framework, which are never trained."""

_OWNED: Final = {"summarization": "summarizer", "tool_selection": "selector"}


class Names(NamedTuple):
    """The names in the metadata of one run."""

    agent: str | None = None
    """``lc_agent_name``: the name given to ``create_agent``."""
    node: str | None = None
    """``langgraph_node``."""
    visit: str | None = None
    """``langgraph_checkpoint_ns``: differs for each execution of a node and each nested graph."""
    owner: str | None = None
    """``lc_source``: the middleware that makes this call for its own purpose."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any] | None) -> Names:
        if not metadata:
            return NO_NAMES
        return cls(
            metadata.get("lc_agent_name"),
            metadata.get("langgraph_node"),
            metadata.get("langgraph_checkpoint_ns"),
            metadata.get("lc_source"),
        )


NO_NAMES: Final = Names()


class Introduction(NamedTuple):
    """An agent that begins with a run."""

    agent: str
    by_node: bool
    """Whether it is named after a graph node, which becomes an agent with its first model call."""

    @property
    def owned(self) -> bool:
        return self.agent.startswith(OWNED_PREFIX)


def introduced(
    run_name: str, names: Names, around: Names, *, in_named_agent: bool, suspended: bool
) -> Introduction | None:
    """Return the agent that begins with a run; None if the run belongs to the agent around it.

    Args:
        run_name: The run's own name; for the root run of a named agent, the agent's name.
        names: The names in the run's metadata.
        around: The names in its parent's metadata.
        in_named_agent: Whether the run is inside an agent with an ``lc_agent_name``, so that graph
            nodes in it are parts of that agent.
        suspended: Whether no agent is current, as in a tool, in which an agent may call itself.
    """
    if names.owner and names.owner != around.owner:
        return Introduction(OWNED_PREFIX + _OWNED.get(names.owner, names.owner), by_node=False)
    if names.agent and (names.agent != around.agent or (suspended and names.agent == run_name)):
        return Introduction(str(names.agent), by_node=False)  # LangChain accepts names of any type
    if in_named_agent or not names.node:
        return None
    if (names.node, names.visit) == (around.node, around.visit):
        return None
    return Introduction(names.node, by_node=True)

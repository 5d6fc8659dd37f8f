"""Who speaks in a run: the naming rules, free of any state.

A run inherits the metadata of the runs around it, so a name says something only where it *changes*.
The run at which it changes is one invocation of the agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

OWNED_PREFIX: Final = "@"
"""Agents whose name starts like this belong to the framework and are never trained."""

_OWNED: Final = {"summarization": "summarizer", "tool_selection": "selector"}


class Names(NamedTuple):
    """What the metadata of one run says about its place."""

    agent: str | None = None
    """``lc_agent_name``: the name given to ``create_agent``."""
    node: str | None = None
    """``langgraph_node``."""
    visit: str | None = None
    """``langgraph_checkpoint_ns``: differs between visits and between nested graphs."""
    owner: str | None = None
    """``lc_source``: the piece of middleware that makes this call for itself."""

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
    """An agent that begins to speak with a run."""

    agent: str
    by_node: bool
    """Named after a graph node, which counts as an agent only once a model speaks in it."""

    @property
    def owned(self) -> bool:
        return self.agent.startswith(OWNED_PREFIX)


def introduced(
    run_name: str, names: Names, around: Names, *, in_named_agent: bool, suspended: bool
) -> Introduction | None:
    """The agent that a run introduces; None when it belongs to the agent before.

    Args:
        run_name: The run's own name; the root run of a named agent carries the agent's.
        names: What the run's metadata says.
        around: What the metadata of its parent says.
        in_named_agent: An agent with an ``lc_agent_name`` speaks around the run, so the graph nodes
            in it are its inner workings.
        suspended: The run starts inside a tool, where no agent is current; an agent may call itself there.
    """
    if names.owner and names.owner != around.owner:
        return Introduction(OWNED_PREFIX + _OWNED.get(names.owner, names.owner), by_node=False)
    if names.agent and (names.agent != around.agent or (suspended and names.agent == run_name)):
        return Introduction(str(names.agent), by_node=False)  # LangChain takes names of any type
    if in_named_agent or not names.node:
        return None
    if (names.node, names.visit) == (around.node, around.visit):
        return None
    return Introduction(names.node, by_node=True)

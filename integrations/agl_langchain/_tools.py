"""What a tool gave back: its result as the model is told it, and the agents it hands over to.

LangGraph's ``Command`` is looked up and never imported: LangChain works without LangGraph, and who
returns one has imported it.
"""

from __future__ import annotations

import sys
from typing import Any, Final, cast

from langchain_core.messages import ToolMessage

_END: Final = "__end__"
"""LangGraph's word for the end of a graph, which is no agent."""


def result_of(output: Any) -> Any:
    """The plain result of a tool, which answers with a message in an agent.

    A command may hold the message that the model is told, among all else that it changes.
    """
    if not _is_command(output):
        return getattr(output, "content", output)
    update: Any = output.update
    changed = cast("dict[str, Any]", update) if isinstance(update, dict) else {}
    told = [each for each in changed.get("messages") or () if isinstance(each, ToolMessage)]
    return told[-1].content if told else output


def handed_to(output: Any) -> list[str]:
    """Nodes of the graph around the agent that its tool goes on to; empty where it hands nothing over."""
    if not _is_command(output) or output.graph != output.PARENT:
        return []
    goto: Any = output.goto
    targets = cast("list[Any]", [*goto]) if isinstance(goto, (list, tuple)) else [goto]
    # A `Send` names its node, a plain target is the name.
    names = [getattr(target, "node", target) for target in targets]
    return [str(name) for name in names if name and name != _END]


def _is_command(output: Any) -> bool:
    command = getattr(sys.modules.get("langgraph.types"), "Command", None)
    return command is not None and isinstance(output, command)

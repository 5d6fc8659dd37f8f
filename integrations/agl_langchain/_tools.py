"""What a tool returned: its result as the model gets it, and the agents of a handoff.

Also the calls that reached none, which no callback reports: those that name no tool, and those
whose arguments are no JSON.

LangGraph's ``Command`` is looked up and never imported: LangChain works without LangGraph, and who
returns one has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

from langchain_core.messages import ToolMessage

_END: Final = "__end__"
"""LangGraph's word for the end of a graph, which is no agent."""


class Unreached(NamedTuple):
    """A call that reached no tool, and why."""

    name: str
    call_id: str | None
    arguments: Any
    error: str


def asked_for(message: Any) -> dict[str, Any]:
    """Arguments of the calls in a model's answer, by id."""
    return {call["id"]: call["args"] for call in getattr(message, "tool_calls", ()) if call["id"]}


def refused(outputs: Any, asked: dict[str, Any]) -> Iterator[Unreached]:
    """Calls with a failed result among the last messages of what a chain gave.

    Args:
        outputs: The chain's; histories that a program was given have failed results too.
        asked: What models asked for here and no tool has taken; a call is reported once.
    """
    found: Any = outputs
    if isinstance(outputs, dict):
        found = cast("dict[str, Any]", outputs).get("messages")
    if not isinstance(found, list):
        return
    for message in reversed(cast("list[Any]", found)):
        if not isinstance(message, ToolMessage):
            return
        call_id = message.tool_call_id
        if message.status == "error" and call_id in asked:
            error = str(message.content)
            yield Unreached(message.name or "tool", call_id, asked.pop(call_id), error)


def unparsed(message: Any) -> Iterator[Unreached]:
    """Calls in a model's answer whose arguments are no JSON: an agent ends with them."""
    for call in getattr(message, "invalid_tool_calls", ()):
        error = call.get("error") or "the arguments are no JSON"
        yield Unreached(call.get("name") or "tool", call.get("id"), call.get("args"), error)


def result_of(output: Any) -> Any:
    """The plain result of a tool, which answers with a message in an agent.

    A command may hold the message that the model gets, among other changes.
    """
    if not _is_command(output):
        return getattr(output, "content", output)
    update: Any = output.update
    changed = cast("dict[str, Any]", update) if isinstance(update, dict) else {}
    messages = [each for each in changed.get("messages") or () if isinstance(each, ToolMessage)]
    return messages[-1].content if messages else output


def handed_to(output: Any) -> list[str]:
    """Nodes of the graph around the agent to which its tool hands off; empty without a handoff."""
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

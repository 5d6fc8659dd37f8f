"""Read tool outputs: the result that the model gets, and the agents of a handoff.

Also find the tool calls that no callback reports: those with an unknown name, and those whose
arguments are not JSON.

LangGraph's ``Command`` is looked up in `sys.modules` and not imported: LangChain works without
LangGraph, and code that returns a ``Command`` has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

from langchain_core.messages import ToolMessage

_END: Final = "__end__"
"""LangGraph's name for the end of a graph: not an agent."""


class Unreached(NamedTuple):
    """A tool call that reached no tool, and its error."""

    name: str
    call_id: str | None
    arguments: Any
    error: str


def asked_for(message: Any) -> dict[str, Any]:
    """Return the arguments of the tool calls in a model's answer, by call id."""
    return {call["id"]: call["args"] for call in getattr(message, "tool_calls", ()) if call["id"]}


def refused(outputs: Any, asked: dict[str, Any]) -> Iterator[Unreached]:
    """Yield the tool calls with a failed result at the end of a chain's messages.

    Args:
        outputs: The chain's outputs.
        asked: Requested calls that no tool has taken, by id. Yielded calls are removed from it, so
            each is reported once; failed results of an older history are not in it.
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
    """Yield the tool calls in a model's answer whose arguments are not JSON: they end an agent."""
    for call in getattr(message, "invalid_tool_calls", ()):
        error = call.get("error") or "the arguments are no JSON"
        yield Unreached(call.get("name") or "tool", call.get("id"), call.get("args"), error)


def result_of(output: Any) -> Any:
    """Return the plain result of a tool, which in an agent is inside a message.

    A ``Command`` may contain that message among other updates.
    """
    if not _is_command(output):
        return getattr(output, "content", output)
    update: Any = output.update
    changed = cast("dict[str, Any]", update) if isinstance(update, dict) else {}
    messages = [each for each in changed.get("messages") or () if isinstance(each, ToolMessage)]
    return messages[-1].content if messages else output


def handed_to(output: Any) -> list[str]:
    """Return the nodes of the parent graph to which a tool hands off; empty without a handoff."""
    if not _is_command(output) or output.graph != output.PARENT:
        return []
    goto: Any = output.goto
    targets = cast("list[Any]", [*goto]) if isinstance(goto, (list, tuple)) else [goto]
    # A `Send` has the name in `node`; any other target is the name.
    names = [getattr(target, "node", target) for target in targets]
    return [str(name) for name in names if name and name != _END]


def _is_command(output: Any) -> bool:
    command = getattr(sys.modules.get("langgraph.types"), "Command", None)
    return command is not None and isinstance(output, command)

"""Assemble the tool calls of an answer from the fragments in its stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

__all__ = ["AssembledToolCall", "CallPart", "FunctionPart", "ToolCalls", "plain_text"]


class FunctionPart(msgspec.Struct):
    """The ``function`` of a tool call, or a fragment of it."""

    name: str | None = None
    arguments: str | dict[str, Any] | list[Any] | None = None
    """JSON text; some servers send a JSON object or array instead."""


class CallPart(msgspec.Struct):
    """A tool call, or a fragment of one."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionPart | None = None

    @property
    def name(self) -> str:
        return (self.function and self.function.name) or ""

    @property
    def arguments(self) -> str:
        return plain_text((self.function and self.function.arguments) or "")


class AssembledToolCall(msgspec.Struct, eq=False):
    """One tool call, assembled from the fragments received until now."""

    position: int
    """Position among the tool calls of the answer, in the order in which they began."""
    index: int | None
    id: str = ""
    type: str = "function"
    name: str = ""
    arguments: list[str] = []

    def add(self, part: CallPart) -> None:
        """Add a fragment; a repeated name is not appended."""
        self.id = self.id or part.id or ""
        self.type = part.type or self.type
        self.name += "" if part.name == self.name else part.name
        if part.arguments:
            self.arguments.append(part.arguments)

    @property
    def whole(self) -> bool:
        """Whether the arguments are a complete JSON object, to which nothing can be appended."""
        text = "".join(self.arguments)
        if not text.rstrip().endswith("}"):
            return False
        try:
            return isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            return False

    def wire(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": self.type, "function": function}


class ToolCalls:
    """The tool calls of one choice, in the order in which they began."""

    def __init__(self) -> None:
        self.calls: list[AssembledToolCall] = []
        self.function: AssembledToolCall | None = None
        """A call in the older ``function_call`` format, which is not one of `calls`."""

    def __len__(self) -> int:
        return len(self.calls)

    def wire(self) -> list[dict[str, Any]]:
        """Return the tool calls in the format of a message."""
        return [call.wire() for call in self.calls]

    def add_function(self, part: FunctionPart) -> AssembledToolCall:
        """Add one ``function_call``, or a fragment of it."""
        self.function = self.function or AssembledToolCall(-1, None)
        self.function.add(CallPart(function=part))
        return self.function

    def add(self, parts: Sequence[CallPart], *, whole: bool) -> list[AssembledToolCall]:
        """Add the entries of one ``tool_calls``; return the tool call that each belongs to.

        Each entry of a whole message is one tool call. Fragments of a stream are matched by their
        id, else by their index. The id is enough for servers that give every tool call the same
        index or none. Without id and index, a fragment is matched by position, name and whether the
        arguments are complete.

        Args:
            parts: The entries, in their order.
            whole: The entries are from a message, not from a delta.
        """
        found: list[AssembledToolCall] = []
        rest = len(self.calls) - len(parts)
        for position, part in enumerate(parts):
            call = None if whole else self._known(part, rest + position, taken=found)
            if call is None:
                call = AssembledToolCall(len(self.calls), part.index)
                self.calls.append(call)
            call.add(part)
            found.append(call)
        return found

    def _known(
        self, part: CallPart, place: int, *, taken: Sequence[AssembledToolCall]
    ) -> AssembledToolCall | None:
        """Return the tool call that a fragment continues; None if it begins a new one.

        Args:
            part: The fragment.
            place: Position of the tool call if the fragments of this chunk continue the latest
                tool calls in order.
            taken: Tool calls that other fragments of this chunk belong to.
        """
        latest = self.calls[::-1]
        if part.id:
            return _by_id(part, latest)
        if part.index is not None:
            latest = [call for call in latest if call.index == part.index] or [
                call for call in latest if call.index is None and not part.name
            ]
            call = latest[0] if latest else None
            return None if call is None or _begins(part, call) else call
        if not part.name:
            return self.calls[place if place >= 0 else -1] if self.calls else None
        for call in latest:
            if call not in taken and call.name == part.name and not _begins(part, call):
                return call
        call = latest[0] if latest else None
        return call if call is not None and call not in taken and not call.arguments else None


def _by_id(part: CallPart, latest: Sequence[AssembledToolCall]) -> AssembledToolCall | None:
    """Return the tool call with the fragment's id, or the one with its index and no id yet."""
    same = [call for call in latest if part.index is None or call.index in (part.index, None)]
    for call in same:
        if call.id == part.id:
            return call
    call = same[0] if same else None
    return call if call is not None and not call.id and not _begins(part, call) else None


def _begins(part: CallPart, call: AssembledToolCall) -> bool:
    """Whether a fragment begins a new tool call, because the arguments of `call` are complete."""
    more = bool(part.arguments) or part.name != call.name
    return bool(part.name) and more and call.whole


def plain_text(value: Any) -> str:
    """Return text unchanged; encode a list of parts, which some servers send, as JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value, enc_hook=lambda _: None).decode()  # JSON has no NaN

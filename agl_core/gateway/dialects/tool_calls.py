"""Tool calls of one answer, put together from the fragments that servers send of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

__all__ = ["AssembledToolCall", "CallPart", "FunctionPart", "ToolCalls", "plain_text"]


class FunctionPart(msgspec.Struct):
    """What is called, or a fragment of it."""

    name: str | None = None
    arguments: str | dict[str, Any] | list[Any] | None = None
    """JSON text; with some servers the arguments themselves."""


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
    """One call so far."""

    position: int
    """Among the calls of its answer, in the order in which they began."""
    index: int | None
    id: str = ""
    type: str = "function"
    name: str = ""
    arguments: list[str] = []

    def add(self, part: CallPart) -> None:
        """Take a fragment; a name that it repeats counts once."""
        self.id = self.id or part.id or ""
        self.type = part.type or self.type
        self.name += "" if part.name == self.name else part.name
        if part.arguments:
            self.arguments.append(part.arguments)

    @property
    def whole(self) -> bool:
        """Its arguments are an object that is closed: more of them would be no JSON."""
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
    """The calls of one choice, in the order in which they began."""

    def __init__(self) -> None:
        self.calls: list[AssembledToolCall] = []

    def __len__(self) -> int:
        return len(self.calls)

    def wire(self) -> list[dict[str, Any]]:
        """As a message has them."""
        return [call.wire() for call in self.calls]

    def add(self, parts: Sequence[CallPart], *, whole: bool) -> list[AssembledToolCall]:
        """Take the entries of one ``tool_calls``; the call that each belongs to.

        Those of a whole message are one call each. Fragments of a stream belong together by their
        id, else by their index. Servers that give every call the same index, or none, are read by
        their ids; those that give neither, by position, name and whether the arguments are closed.

        Args:
            parts: In their order.
            whole: They are of a message, not of a delta.
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
        """The call that a fragment continues; None for one that begins.

        Args:
            part: The fragment.
            place: Of the call, if the fragments of this chunk continue the latest calls in order.
            taken: Calls that other fragments of this chunk belong to.
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
    """The call with the id of a fragment, or that has its index and no id yet."""
    same = [call for call in latest if part.index is None or call.index in (part.index, None)]
    for call in same:
        if call.id == part.id:
            return call
    call = same[0] if same else None
    return call if call is not None and not call.id and not _begins(part, call) else None


def _begins(part: CallPart, call: AssembledToolCall) -> bool:
    """Whether a fragment with a name cannot belong to a call, whose arguments are closed."""
    more = bool(part.arguments) or part.name != call.name
    return bool(part.name) and more and call.whole


def plain_text(value: Any) -> str:
    """Text as it is; parts, which some servers send instead, as JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value, enc_hook=lambda _: None).decode()  # NaN is no JSON

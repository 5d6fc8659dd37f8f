"""Replaces captured prompts in model requests: the texts that a program itself sends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

from agl_core.interfaces import Identity, JsonObjects
from agl_core.types import RESERVED_PREFIX, Losses, PromptTemplate, any_matches
from agl_prompts._captured_pattern import Pattern
from agl_prompts._texts import HEADS

__all__ = ["NOT_FOUND", "CapturedPrompt", "RequestPrompts", "text_of"]

NOT_FOUND: Final = "prompts_not_found"
"""Cause of loss: requests of a named agent in which its known text was not found."""


class CapturedPrompt:
    """A captured prompt that replaces the text that a program sends."""

    def __init__(self, prompt: PromptTemplate) -> None:
        """Prepare a prompt whose `known` is set; it is empty if the program sends no text."""
        self.tool = prompt.tool
        self._agents = prompt.agents
        self._known = prompt.known or ""
        self._template = prompt
        self._names = prompt.placeholders
        self._pattern = Pattern(self._known)

    def concerns(self, agent: str) -> bool:
        """Return whether a name or glob of the prompt matches the agent."""
        return any_matches(self._agents, agent)

    def in_messages(self, messages: JsonObjects) -> JsonObjects | None:
        """Return the messages with the prompt in place of the known text.

        The first head that has the text is changed; its role, position, parts and other fields stay.
        An agent that sends no prompt gets one as the first message.

        Returns:
            None if the text was not found; the same object if the prompt equals the text.
        """
        if not self._known:
            return self._inserted(messages)
        for index, message in enumerate(messages):
            content = message.get("content") if message.get("role") in HEADS else None
            changed = self._in_content(content)
            if changed is not None:
                return _replaced(messages, index, content=changed)
        return None

    def in_tools(self, tools: JsonObjects) -> JsonObjects | None:
        """Return the tools with the prompt in place of the known description; as `in_messages`."""
        if not (self._known or self._template.template):
            return tools
        for index, tool in enumerate(tools):
            function = tool.get("function")
            if not isinstance(function, dict):
                continue
            fields = cast("dict[str, Any]", function)
            if fields.get("name") == self.tool:
                changed = self._in_description(fields.get("description"))
                if changed is None:
                    return None
                (described,) = _replaced([fields], 0, description=changed)
                return _replaced(tools, index, function=described)
        return tools

    def in_text(self, text: str) -> str | None:
        """Return the text with the prompt in place of the known text; None if it is not there."""
        found = self._pattern.find(text)
        if found is None:
            return None
        if self._template.template == self._known:
            return text
        values = {name: value for name, value in found.values.items() if name in self._names}
        new = self._template.format(**values)
        return f"{text[: found.start]}{new}{text[found.end :]}"

    def _inserted(self, messages: JsonObjects) -> JsonObjects | None:
        if messages and messages[0].get("role") in HEADS:
            return None
        if not self._template.template:
            return messages
        return [{"role": HEADS[0], "content": self._template.template}, *messages]

    def _in_content(self, content: Any) -> Any:
        if isinstance(content, str):
            return self.in_text(content)
        if not isinstance(content, list):
            return None
        parts = cast("list[Any]", content)
        for index, part in enumerate(parts):
            text = text_of(part)
            changed = None if text is None else self.in_text(text)
            if changed is not None:
                return _replaced(parts, index, text=changed)
        return None

    def _in_description(self, description: Any) -> str | None:
        if self._known:
            return self.in_text(description) if isinstance(description, str) else None
        return self._template.template if not description else None


def text_of(part: Any) -> str | None:
    """Return the text of one part of a content; None for an image or another kind."""
    if not isinstance(part, dict):
        return None
    text = cast("dict[str, Any]", part).get("text")
    return text if isinstance(text, str) else None


def _replaced(rows: list[Any], index: int, **changes: Any) -> list[Any]:
    """Return a copy of the rows in which one has other values; the same list if it has them."""
    row: dict[str, Any] = rows[index]
    if all(row.get(name) is value or row.get(name) == value for name, value in changes.items()):
        return rows
    return [*rows[:index], {**row, **changes}, *rows[index + 1 :]]


class RequestPrompts:
    """The captured prompts of one version of the resources; implements `Rewrite` of core."""

    def __init__(self, prompts: Iterable[PromptTemplate]) -> None:
        """Prepare the prompts; of two for the same text of an agent the first counts."""
        self._prompts = [CapturedPrompt(each) for each in prompts if each.known is not None]

    def __bool__(self) -> bool:
        return bool(self._prompts)

    def __call__(
        self, identity: Identity, messages: JsonObjects, tools: JsonObjects, losses: Losses
    ) -> tuple[JsonObjects, JsonObjects]:
        """Return the messages and tools with the prompts of the request's agent in place."""
        agent = identity.known_as
        if not agent or identity.agent.startswith(RESERVED_PREFIX):
            return messages, tools
        replaced: set[str] = set()
        for prompt in self._prompts:
            if prompt.tool in replaced or not prompt.concerns(agent):
                continue
            replaced.add(prompt.tool)
            changed = prompt.in_tools(tools) if prompt.tool else prompt.in_messages(messages)
            if changed is None:
                losses.add(NOT_FOUND)
            elif prompt.tool:
                tools = changed
            else:
                messages = changed
        return messages, tools

"""A prompt budget as a compaction strategy of the framework."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from agent_framework import Content, FunctionTool, Message
from agl_budget import CountTokens, PromptBudget


@dataclass(frozen=True, slots=True)
class Asked:
    """The parts of a model call, other than its messages, that strategies do not get."""

    agent: str | None
    instructions: str
    tools: tuple[Any, ...]

    @classmethod
    def of(cls, agent: str | None, options: Mapping[str, Any]) -> Asked:
        given: Any = options.get("instructions") or ""
        instructions = given if isinstance(given, str) else "\n".join(map(str, given))
        tools: Any = options.get("tools") or ()
        several = isinstance(tools, Sequence)
        return cls(
            agent, instructions, tuple(cast("Sequence[Any]", tools) if several else (tools,))
        )


NOTHING = Asked(None, "", ())
ASKED: ContextVar[Asked] = ContextVar("agl_agent_framework_asked", default=NOTHING)
"""Set while the strategy of a recorded call runs."""


class PromptBudgetStrategy:
    """Cuts each prompt of an agent to a number of tokens; see `agl_budget.PromptBudget`.

    ::

        Agent(client, name="writer", compaction_strategy=PromptBudgetStrategy(2000))

    Unlike the framework's own strategies it changes one request and not the history, so each call
    is cut from the whole history. In a rollout the agent's instructions and tools count as well;
    outside, a strategy gets only the messages.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        *,
        agent: str | None = None,
        count: CountTokens | None = None,
    ) -> None:
        """Set a budget; the parameters are those of `agl_budget.PromptBudget`.

        Raises:
            ConfigError: the budget is not a positive number.
        """
        PromptBudget(max_tokens)
        self._max_tokens = max_tokens
        self._agent = agent
        self._count: CountTokens | None = count

    async def __call__(self, messages: list[Message]) -> bool:
        """Cut the list of messages to the budget, in place; return whether it changed.

        Raises:
            ContextOverflowError: instructions, tools and the last turn alone exceed the budget.
            ConfigError: tokens cannot be counted, or no budget is known.
            EngineError: the gateway does not answer.
        """
        asked = ASKED.get()
        sent: list[dict[str, Any]] = []
        owners: list[tuple[Message | None, Sequence[Content]]] = []
        if asked.instructions:
            sent.append({"role": "system", "content": asked.instructions})
            owners.append((None, ()))
        for message in messages:
            for wire, contents in _sent(message):
                sent.append(wire)
                owners.append((message, contents))
        agent = self._agent or asked.agent
        budget = PromptBudget(self._max_tokens, agent=agent, count=self._count)
        fitted = await budget.aplan(sent, tools=[_tool(tool) for tool in asked.tools])
        if not fitted.cut:
            return False
        left: dict[int, Message] = {}
        for at, wire in zip(fitted.kept, fitted.messages, strict=True):
            message, contents = owners[at]
            if message is not None:
                kept = left.get(id(message), message)
                changed = wire is not sent[at]
                left[id(message)] = _clipped(kept, contents, wire) if changed else kept
        messages[:] = left.values()
        return True


def _tool(tool: Any) -> dict[str, Any]:
    if isinstance(tool, FunctionTool):
        return tool.to_json_schema_spec()
    return dict(cast("Mapping[str, Any]", tool)) if isinstance(tool, Mapping) else {}


def _sent(message: Message) -> list[tuple[dict[str, Any], Sequence[Content]]]:
    """Convert a message to OpenAI's form: pairs of a message and the contents with its texts."""
    results = [content for content in message.contents if content.type == "function_result"]
    if results:
        return [
            (
                {"role": "tool", "tool_call_id": each.call_id, "content": _result(each)},
                (each,),
            )
            for each in results
        ]
    texts = [content for content in message.contents if content.type == "text"]
    wire: dict[str, Any] = {
        "role": str(message.role),
        "content": [{"type": "text", "text": content.text or ""} for content in texts],
    }
    calls = [_call(content) for content in message.contents if content.type == "function_call"]
    if calls:
        wire["tool_calls"] = calls
    if len(texts) == 1:
        wire["content"] = texts[0].text or ""
    elif not texts:
        wire["content"] = None if calls else ""
    return [(wire, texts)]


def _call(content: Content) -> dict[str, Any]:
    arguments: Any = content.arguments
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, default=str)
    function = {"name": content.name, "arguments": arguments}
    return {"id": content.call_id, "type": "function", "function": function}


def _result(content: Content) -> str:
    items = content.items or ()
    if items:
        return "\n".join(item.text or "" for item in items if item.type == "text")
    return str(content.result) if content.result is not None else ""


def _clipped(message: Message, contents: Sequence[Content], wire: Mapping[str, Any]) -> Message:
    """Return a copy of the message in which `contents` have the cut texts."""
    texts: Any = wire["content"]
    left = [texts] if isinstance(texts, str) else [part["text"] for part in texts]
    by_id = {id(content): text for content, text in zip(contents, left, strict=True)}
    clipped = copy.copy(message)
    clipped.contents = [
        _with_text(content, by_id[id(content)]) if id(content) in by_id else content
        for content in message.contents
    ]
    return clipped


def _with_text(content: Content, text: str) -> Content:
    changed = copy.copy(content)
    if content.type == "function_result":
        changed.result = text
        changed.items = [Content.from_text(text)]
    else:
        changed.text = text
    return changed

"""Conversion of trajectories to conversations: the messages of an agent's calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from agl_core.interfaces import Renderer
from agl_core.thinking import tag_pair
from agl_core.types import Choice, ModelCall, Trajectory, Triplet

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages in the format of the chat completions API; the last one was sampled."""

    messages: list[Message]
    sampled: frozenset[int]
    """Indices of the messages that calls of this trajectory sampled; the others are context."""
    tools: list[dict[str, Any]]
    last: Triplet
    """The call that sampled the last message."""

    def rendered_alike(self, render: Renderer) -> bool:
        """Return whether rendering the messages with a chat template gives the recorded tokens.

        The template may add one token after them, such as a line end. It may not after an answer
        that reached its token limit: that answer lacks the end token, which every template writes.
        """
        recorded = [*self.last.prompt_ids, *self.last.response_ids]
        try:
            rendered = list(render(self.messages, self.tools))
        except ValueError:
            return False
        more = 0 if self.last.finish_reason == "length" else 1
        return rendered[: len(recorded)] == recorded and len(rendered) - len(recorded) <= more

    def opens_its_thinking(self, tags: Sequence[str]) -> bool:
        """Return whether no sampled answer begins inside thinking that its prompt opened."""
        sampled = (self.messages[index].get("content") for index in self.sampled)
        return not any(begins_inside(str(content or ""), tags) for content in sampled)

    def weighted(self) -> dict[str, Any]:
        """Return an example for chat fine-tuning; sampled assistant messages have weight 1."""
        messages = [
            {**message, "weight": int(index in self.sampled)}
            if message.get("role") == "assistant"
            else message
            for index, message in enumerate(self.messages)
        ]
        return {"messages": messages, **({"tools": self.tools} if self.tools else {})}


def conversations(
    trajectory: Trajectory, calls: Mapping[str, ModelCall], *, unused: bool = False
) -> list[Conversation]:
    """Convert a trajectory to conversations; each sampled answer is in `sampled` of one of them.

    The result is usually one conversation. Another one begins where a call's tokens continue those
    of the call before but its messages do not, for example because the client merges or rewrites
    messages or changes the tools.

    Args:
        trajectory: The trajectory.
        calls: The recorded calls by id.
        unused: Include choices of an ``n > 1`` call that no call continued and no reward named.
    """
    found: list[Conversation] = []
    for triplet in trajectory.calls:
        if not (triplet.continued or unused or triplet.reward is not None):
            continue
        call = calls[triplet.call_id]
        choice = next(one for one in call.choices if one.index == triplet.choice)
        sampled = frozenset({len(call.messages)})
        if found and _continues(found[-1], call):
            sampled |= found.pop().sampled
        messages = [*call.messages, answer_message(choice)]
        found.append(
            Conversation(messages=messages, sampled=sampled, tools=call.tools, last=triplet)
        )
    return found


def begins_inside(text: str, tags: Sequence[str]) -> bool:
    """Return whether a text begins inside thinking: its first tag is a closing one."""
    for opening, closing in map(tag_pair, tags):
        at = text.find(closing)
        if at >= 0 and opening not in text[:at]:
            return True
    return False


def answer_message(choice: Choice) -> Message:
    """Return a choice as an assistant message."""
    message: Message = {"role": "assistant", "content": choice.text or None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        message["tool_calls"] = choice.tool_calls
    if choice.function_call is not None:
        message["function_call"] = choice.function_call
    if choice.refusal:
        message["refusal"] = choice.refusal
    if choice.audio and not choice.text:
        message["content"] = choice.audio
    if message["content"] is None and message.keys() <= {"role", "content", "reasoning_content"}:
        message["content"] = ""
    return message


def calls_by_id(records: Iterable[ModelCall]) -> dict[str, ModelCall]:
    """Return the calls by id, each as the record of its last try."""
    found: dict[str, ModelCall] = {}
    for call in records:
        known = found.get(call.id)
        if not call.superseded and (known is None or known.tries <= call.tries):
            found[call.id] = call
    return found


def _continues(before: Conversation, call: ModelCall) -> bool:
    known = before.messages
    return (
        before.tools == call.tools
        and len(known) <= len(call.messages)
        and all(map(_same, known, call.messages))
    )


def _same(one: Message, other: Message) -> bool:
    """Return whether two messages are equal except for empty fields, which some clients omit."""
    return _essence(one) == _essence(other)


def _essence(message: Message) -> tuple[Any, ...]:
    calls = cast("Sequence[Mapping[str, Any]]", message.get("tool_calls") or ())
    return (
        message.get("role"),
        _text(message.get("content")),
        message.get("tool_call_id"),
        tuple(_function(call) for call in calls),
    )


def _text(content: Any) -> Any:
    """Return content with its text parts joined, for comparison."""
    if not isinstance(content, list):
        return content or ""
    parts = cast("list[Any]", content)
    texts: list[Any] = [
        cast("dict[str, Any]", part).get("text") for part in parts if isinstance(part, dict)
    ]
    if len(texts) == len(parts) and all(isinstance(text, str) for text in texts):
        return "".join(texts)
    return parts


def _function(call: Mapping[str, Any]) -> tuple[Any, Any]:
    function = cast("Mapping[str, Any]", call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return function.get("name"), arguments
    return function.get("name"), arguments

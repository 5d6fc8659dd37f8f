"""Conversations from files: chat fine-tuning examples and preference pairs, one JSON per line.

::

    {"messages": [...], "tools": [...], "agent": "writer"}
    {"input": {"messages": [...], "tools": [...]}, "preferred_output": [...], "agent": "writer"}

The first is the form of OpenAI's chat fine-tuning, which ``agl rollouts export --format openai``
writes; ``agent`` is an addition. The second is that of OpenAI's preference fine-tuning: its
preferred output is trained, after the input as context; ``non_preferred_output`` is not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from agl_core.config import read_text
from agl_core.errors import ConfigError

__all__ = ["Example", "read_examples"]

Message = dict[str, Any]

_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
_ANSWER: Final = ("content", "tool_calls", "function_call", "refusal")
"""Fields of an assistant message of which one at least is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One conversation."""

    place: str
    """``<file>:<line>``, for messages and ids."""
    agent: str
    """Empty if the conversation names none."""
    messages: list[Message]
    """In the format of chat completions, without weights."""
    tools: list[dict[str, Any]]
    trained: tuple[int, ...]
    """Indices of the assistant messages to imitate; empty if all have weight 0."""


def read_examples(path: Path) -> list[Example]:
    """Read a file of conversations, in order; blank lines are skipped.

    Raises:
        ConfigError: the file cannot be read, has no conversation, has none to train on, or a line
            is malformed; the message names the line.
    """
    text = read_text(path, what="Conversations").removeprefix("\ufeff")
    lines = text.split("\n")  # not `splitlines`: JSON text may contain U+2028
    examples = [
        _example(line, f"{path}:{number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not examples:
        raise ConfigError(f"{path} has no conversations: write one JSON object per line")
    if not any(example.trained for example in examples):
        raise ConfigError(
            f"Every assistant message of the {len(examples)} conversations in {path} has weight 0: "
            f"there is nothing to train on"
        )
    return examples


def _example(line: str, place: str) -> Example:
    try:
        row: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigError(f"{place} is no JSON: {error}") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{place}: an object is needed, not {row!r:.80}")
    fields = cast("dict[str, Any]", row)
    agent = fields.get("agent", "")
    if not isinstance(agent, str):
        raise ConfigError(f"{place}: agent is {agent!r:.80}: write the name of an agent")
    context: Sequence[Any] = ()
    if "preferred_output" in fields:
        asked = _mapping(fields.get("input"), f"{place}: input")
        context = _list(asked.get("messages"), f"{place}: input.messages")
        said = _list(fields["preferred_output"], f"{place}: preferred_output")
        tools = asked.get("tools")
    elif "messages" in fields:
        said, tools = _list(fields["messages"], f"{place}: messages"), fields.get("tools")
    else:
        raise ConfigError(
            f"{place}: neither messages nor input with preferred_output is there, but "
            f"{sorted(fields)}: use the form of chat or of preference fine-tuning"
        )
    if fields.get("functions"):
        raise ConfigError(f"{place}: functions are not supported: write them as tools")
    messages = [_message(each, f"{place}: message {at}") for at, each in enumerate(context)]
    trained: list[int] = []
    for each in said:
        where = f"{place}: message {len(messages)}"
        if _weight(each, where):
            trained.append(len(messages))
        messages.append(_message(each, where))
    if not any(each["role"] == "assistant" for each in messages[len(context) :]):
        raise ConfigError(f"{place} has no assistant message to imitate")
    return Example(
        place=place,
        agent=agent,
        messages=messages,
        tools=[dict(_mapping(each, f"{place}: tools")) for each in _list(tools or [], place)],
        trained=tuple(trained),
    )


def _weight(message: Any, where: str) -> bool:
    """Return whether a message is trained."""
    fields = _mapping(message, where)
    is_answer, weight = fields.get("role") == "assistant", fields.get("weight")
    if weight is None:
        return is_answer
    if not is_answer or isinstance(weight, bool) or weight not in (0, 1):
        raise ConfigError(
            f"{where}: weight is {weight!r}: only assistant messages have one, and it is 0 or 1"
        )
    return weight == 1


def _message(message: Any, where: str) -> Message:
    fields = dict(_mapping(message, where))
    fields.pop("weight", None)
    role = fields.get("role")
    if role not in _ROLES:
        raise ConfigError(f"{where}: role is {role!r}: one of {', '.join(_ROLES)} is needed")
    if role == "assistant" and not any(fields.get(name) is not None for name in _ANSWER):
        raise ConfigError(f"{where}: an assistant message needs one of {', '.join(_ANSWER)}")
    return fields


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: an object is needed, not {value!r:.80}")
    return cast("dict[str, Any]", value)


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}: a list is needed, not {value!r:.80}")
    return cast("list[Any]", value)

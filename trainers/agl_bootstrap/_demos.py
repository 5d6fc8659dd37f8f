"""Demonstrations: from the calls of an attempt to text in a prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from agl_prompts import HEADS, Seen, SeenCall

from agl_core.interfaces import TunedPrompt
from agl_core.types import PromptTemplate, Task, any_matches

HEADER: Final = "## Examples of correct answers"
"""The line above the demonstrations. What follows it is replaced when a prompt is tuned again."""

_SEPARATOR: Final = f"\n\n{HEADER}\n\n"
_BETWEEN: Final = {"messages": "\n\n", "answer": "\n"}

Form = Literal["messages", "answer"]
"""What a demonstration shows of a call: the messages of its prompt with the answer, or the answer
alone."""

Unusable = Literal["score", "calls", "long", "braces"]
"""Why an attempt gives no demonstration: it failed or its score is below the threshold, the agents
made no call, the text is too long, or it has a name in braces, which would be a placeholder."""


class Demo(msgspec.Struct, frozen=True, kw_only=True):
    """One demonstration of a prompt's agents."""

    task_id: str
    text: str
    score: float
    form: Form = "messages"


def demo_of(
    seen: Seen, prompt: TunedPrompt, *, threshold: float, max_chars: int, form: Form = "messages"
) -> Demo | Unusable:
    """Return the demonstration in an attempt, or why there is none.

    An attempt gives at most one: the call of the prompt's agents with the highest reward of its
    own, the last of equal ones. Its messages hold the agent's earlier calls.
    """
    if seen.failure is not None or seen.lost or min(seen.scores) < threshold:
        return "score"
    calls = [
        call
        for call in seen.calls
        if any_matches(prompt.agents, call.agent) and (call.answer or call.tool_calls)
    ]
    if not calls:
        return "calls"
    best = max(enumerate(calls), key=lambda each: (each[1].reward or 0.0, each[0]))[1]
    text = _text_of(best) if form == "messages" else _answer_of(best)
    if len(text) > max_chars:
        return "long"
    if PromptTemplate(template=text).placeholders or HEADER in text:
        return "braces"
    return Demo(task_id=seen.task.id, text=text, score=seen.score, form=form)


def without_demos(text: str) -> str:
    """Return a prompt's text without the demonstrations that an earlier phase added."""
    return text.partition(_SEPARATOR)[0]


def with_demos(text: str, demos: Sequence[Demo], *, max_chars: int) -> str:
    """Return a text with as many of the demonstrations as fit, in their order.

    ::

        {text}

        ## Examples of correct answers

        ### Example 1
        Question: How much is the red lamp?
        Result: {"price": 12, "unit": "euros"}
        Answer: The red lamp costs 12 euros.

    Those of the form ``answer`` follow each other without headings; equal ones are added once.
    The placeholders of the text stay; a demonstration has none.

    Args:
        text: The prompt without demonstrations.
        demos: The demonstrations.
        max_chars: Largest number of characters that are added.
    """
    added = ""
    shown: list[str] = []
    for demo in demos:
        alone = demo.form == "answer"
        if alone and demo.text in shown:
            continue
        one = demo.text if alone else f"### Example {len(shown) + 1}\n{demo.text}"
        joined = f"{added}{_BETWEEN[demo.form]}{one}" if added else f"{_SEPARATOR}{one}"
        if len(joined) <= max_chars:
            added = joined
            shown.append(demo.text)
    return f"{text.rstrip()}{added}" if added else text


def apart(tasks: Sequence[Task], others: Sequence[Task]) -> list[Task]:
    """Return the tasks that are not among the others, neither by their id nor by their input."""
    ids = {other.id for other in others}
    inputs = {_input(other) for other in others if other.input is not None}
    return [task for task in tasks if task.id not in ids and _input(task) not in inputs]


def _input(task: Task) -> str:
    return json.dumps(task.input, sort_keys=True, default=str)


def _text_of(call: SeenCall) -> str:
    lines = [line for message in call.messages for line in _lines(message)]
    return "\n".join([*lines, *_said(call.answer, call.tool_calls)])


def _answer_of(call: SeenCall) -> str:
    return call.answer.strip() or "\n".join(_calls(call.tool_calls))


def _lines(message: Mapping[str, Any]) -> list[str]:
    """Return the lines of one message of the prompt; none of a system message."""
    role, text = message.get("role"), _content(message)
    if role in HEADS:
        return []
    if role == "assistant":
        return _said(text, message.get("tool_calls") or ())
    return [f"{'Result' if role == 'tool' else 'Question'}: {text}"] if text else []


def _said(text: str, tool_calls: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"Answer: {text.strip()}"] if text.strip() else []
    return [*lines, *(f"Call: {each}" for each in _calls(tool_calls))]


def _calls(tool_calls: Sequence[Mapping[str, Any]]) -> list[str]:
    functions = [call["function"] for call in tool_calls]
    return [f"{each['name']}({each['arguments']})" for each in functions]


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content.strip()
    texts = [part.get("text") or "" for part in content if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if text).strip()

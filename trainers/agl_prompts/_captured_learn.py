"""Learns captured prompts: the texts that named agents send, from the records of rollouts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any, Final, NamedTuple, cast

from agl_core.errors import ConfigError
from agl_core.interfaces import AttemptRecord
from agl_core.types import (
    PLACEHOLDER,
    RESERVED_PREFIX,
    ModelCall,
    PromptTemplate,
    Task,
    any_matches,
)
from agl_prompts._captured import text_of
from agl_prompts._captured_align import Skeleton, align, words
from agl_prompts._captured_pattern import Pattern
from agl_prompts._texts import HEADS

__all__ = ["learn", "learn_text"]

_COMPARED: Final = 32
"""Number of different texts that are compared at first; the others are compared if they differ."""
_ROUNDS: Final = 8
_MOST_PLACEHOLDERS: Final = 20
_FEWEST_WORDS: Final = 5
"""Texts with fewer common words have nothing in common, unless these are most of a text."""
_SHOWN: Final = 300
"""Number of characters of a text in an error."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Sent(NamedTuple):
    """A text that an agent sent."""

    text: str
    agent: str
    task: Task


def learn(
    records: Iterable[AttemptRecord], *, name: str, agents: Sequence[str], tool: str = ""
) -> PromptTemplate:
    """Return the prompt that named agents send, as a captured prompt with its own text.

    The text is that of the first message if its role is ``system`` or ``developer``, and of its
    first part if it has several. It is empty if the agents send none.

    Args:
        records: Attempts in which no prompt was replaced, of several tasks if possible: what is
            equal in all of them is constant.
        name: The prompt's name, for errors.
        agents: Exact names or globs.
        tool: Name of the tool whose description is learned; empty for the system prompt.

    Raises:
        ConfigError: no such agent made a call, none has the tool, or the texts differ too much.
    """
    calls = [(call.record, record.rollout.task) for record in records for call in record.calls]
    ours = [(call, task) for call, task in calls if _named(call, agents) and call.messages]
    if not ours:
        raise _no_call(name, agents, [call for call, _ in calls])
    sent = [
        _Sent(text.strip(), call.known_as, task)
        for call, task in ours
        for text in _texts(call, tool)
    ]
    if tool and not sent:
        raise _no_tool(name, agents, tool, [call for call, _ in ours])
    known = learn_text(name, [each for each in sent if each.text])
    return PromptTemplate(template=known, agents=tuple(agents), known=known, tool=tool)


def learn_text(name: str, sent: Sequence[_Sent]) -> str:
    """Return the common text of texts, with placeholders; empty if there are none.

    Raises:
        ConfigError: the texts have nothing in common, or differ in too many places.
    """
    different = list({each.text: each for each in sent}.values())
    compared, others = different[:_COMPARED], different[_COMPARED:]
    known = ""
    for _ in range(_ROUNDS):
        known = _common_text(name, compared)
        pattern = Pattern(known)
        unlike = next((each for each in others if pattern.find(each.text) is None), None)
        if unlike is None:
            return known
        compared.append(unlike)
    raise _too_many(name, align([each.text for each in compared]))


def _common_text(name: str, sent: Sequence[_Sent]) -> str:
    if len(sent) < 2:  # noqa: PLR2004
        return sent[0].text if sent else ""
    aligned = align([each.text for each in sent])
    skeleton = _inside(aligned)
    common = sum(map(words, skeleton.literals))
    fewest = min(words(each.text) for each in sent)
    if common < _FEWEST_WORDS and 2 * common <= fewest:
        raise _too_different(name, sent)
    if len(skeleton.literals) > _MOST_PLACEHOLDERS + 1:
        raise _too_many(name, skeleton)
    for each in (skeleton, _inside(_without_signs(aligned))):
        for names in (_names(each, sent), _distinct(each)):
            known = _rendered(each.literals, names)
            if _reads(known, names, each, sent):
                return known
    # Some values hold the text after them, and are read up to there; what follows stays in place.
    known = _rendered(skeleton.literals, _distinct(skeleton))
    pattern = Pattern(known)
    if any(pattern.find(each.text) is None for each in sent):
        raise _too_many(name, skeleton)
    return known


def _without_signs(skeleton: Skeleton) -> Skeleton:
    """Add signs after the last differing passage to it: they may occur in its values."""
    *literals, last = skeleton.literals
    if not skeleton.values[0] or words(last):
        return skeleton
    values = [[*row[:-1], row[-1] + last] for row in skeleton.values]
    return Skeleton([*literals, ""], values)


def _inside(skeleton: Skeleton) -> Skeleton:
    """Leave out differing text before and after the constant one, but for values within a line.

    Whole lines before and after it are what a framework adds to the prompt; they stay in place.
    """
    literals, values = [*skeleton.literals], [[*row] for row in skeleton.values]
    if not literals[0] and not _in_line([row[0] for row in values], literals[1][:1]):
        literals, values = [literals[1].lstrip(), *literals[2:]], [row[1:] for row in values]
    if len(literals) > 1 and not words(literals[-1]):
        last = [row[-1] + literals[-1] for row in values]
        if not _in_line(last, literals[-2][-1:]):
            literals, values = [*literals[:-2], literals[-2].rstrip()], [row[:-1] for row in values]
    return Skeleton(literals, values)


def _in_line(values: Sequence[str], neighbour: str) -> bool:
    """Return whether values stand in one line with the text beside them, and none is missing."""
    return neighbour != "\n" and all(value.strip() and "\n" not in value for value in values)


def _names(skeleton: Skeleton, sent: Sequence[_Sent]) -> list[str]:
    """Return the names of the placeholders; those with equal values have equal names.

    A placeholder has the name of the tasks' field that holds its values, or a number.
    """
    taken = set(PLACEHOLDER.findall("".join(skeleton.literals)))
    fields = [_fields(each.task) for each in sent]
    known: dict[tuple[str, ...], str] = {}
    names: list[str] = []
    for column in range(len(skeleton.literals) - 1):
        values = tuple(row[column] for row in skeleton.values)
        if values not in known:
            of_task = (
                field
                for field in fields[0]
                if all(each.get(field) == value for each, value in zip(fields, values, strict=True))
            )
            known[values] = next(each for each in chain(of_task, _fresh()) if each not in taken)
            taken.add(known[values])
        names.append(known[values])
    return names


def _distinct(skeleton: Skeleton) -> list[str]:
    """Return a name of its own for every placeholder."""
    taken = PLACEHOLDER.findall("".join(skeleton.literals))
    fresh = (each for each in _fresh() if each not in taken)
    return [next(fresh) for _ in skeleton.literals[1:]]


def _fresh() -> Iterator[str]:
    return (f"value_{number}" for number in count(1))


def _fields(task: Task) -> dict[str, str]:
    """Return the values of a task by the names of its fields."""
    given: dict[str, Any] = {"input": task.input, **task.metadata}
    if isinstance(task.input, Mapping):
        given |= cast("Mapping[str, Any]", task.input)
    return {
        name: str(value)
        for name, value in given.items()
        if _NAME.fullmatch(name) and isinstance(value, (str, int, float))
    }


def _rendered(literals: Sequence[str], names: Sequence[str]) -> str:
    parts = [literals[0]]
    for name, literal in zip(names, literals[1:], strict=True):
        parts += [f"{{{name}}}", literal]
    return "".join(parts)


def _reads(known: str, names: Sequence[str], skeleton: Skeleton, sent: Sequence[_Sent]) -> bool:
    """Return whether the text is found in every one that it was learned from, with its values."""
    pattern = Pattern(known)
    for each, values in zip(sent, skeleton.values, strict=True):
        found = pattern.find(each.text)
        if found is None or any(
            found.values[name] != value for name, value in zip(names, values, strict=True)
        ):
            return False
    return True


def _named(call: ModelCall, agents: Sequence[str]) -> bool:
    if not call.known_as or call.agent.startswith(RESERVED_PREFIX):
        return False
    return any_matches(agents, call.known_as)


def _texts(call: ModelCall, tool: str) -> Iterator[str]:
    if tool:
        for function in _functions(call):
            if function.get("name") == tool:
                yield str(function.get("description") or "")
    elif call.messages[0].get("role") in HEADS:
        content = call.messages[0].get("content")
        parts = cast("list[Any]", content) if isinstance(content, list) else []
        texts = [content] if isinstance(content, str) else [*filter(None, map(text_of, parts))]
        yield from texts[:1]


def _functions(call: ModelCall) -> Iterator[dict[str, Any]]:
    for tool in call.tools:
        function = tool.get("function")
        if isinstance(function, dict):
            yield cast("dict[str, Any]", function)


def _no_call(name: str, agents: Sequence[str], calls: Sequence[ModelCall]) -> ConfigError:
    seen = sorted({call.known_as for call in calls if call.known_as})
    return ConfigError(
        f"prompts.{name}: none of the agents {[*agents]} sent a prompt through the gateway: no call "
        f"is theirs. Agents with calls: {seen or 'none'}. Name one of them, or a glob"
    )


def _no_tool(
    name: str, agents: Sequence[str], tool: str, calls: Sequence[ModelCall]
) -> ConfigError:
    seen = sorted({str(each.get("name")) for call in calls for each in _functions(call)})
    return ConfigError(
        f"prompts.{name}: the agents {[*agents]} have no tool {tool!r}. Their tools: "
        f"{seen or 'none'}"
    )


def _too_different(name: str, sent: Sequence[_Sent]) -> ConfigError:
    one = sent[0]
    other = min(sent[1:], key=lambda each: _common_words(one.text, each.text))
    return ConfigError(
        f"prompts.{name}: its agents send prompts that have nothing in common, so that they cannot "
        f"be one prompt. {one.agent!r} sends {_short(one.text)!r}; {other.agent!r} sends "
        f"{_short(other.text)!r}. Write a table for each agent, or name the agent's two roles "
        f"differently in the program"
    )


def _too_many(name: str, skeleton: Skeleton) -> ConfigError:
    places = [
        f"after {literal[-40:]!r}: {_short(one, 60)!r} or {_short(other, 60)!r}"
        for literal, one, other in zip(
            skeleton.literals, skeleton.values[0], skeleton.values[-1], strict=False
        )
    ]
    return ConfigError(
        f"prompts.{name}: its text differs between calls in {len(places)} places, which cannot be "
        f"replaced by placeholders: {'; '.join(places[:8])}. Give the varying text to the agent "
        f"in a message of its own, or use a template that it reads with agl.resource"
    )


def _common_words(*texts: str) -> int:
    return sum(map(words, align(texts).literals))


def _short(text: str, most: int = _SHOWN) -> str:
    return text if len(text) <= most else f"{text[:most]}…"

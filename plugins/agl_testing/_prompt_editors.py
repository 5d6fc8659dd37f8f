"""Scripted editors of the known objective: a good one, and ones that fail in one way each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from agl_testing.prompt_world import HARMFUL, NEUTRAL, SLOW, WANTED, AnswerFunction, PromptWorld

_PROMPT: Final = re.compile(r"<prompt>.*?</prompt>", re.DOTALL)
_MISSING: Final = re.compile(r"missing: ([a-z, ]+)")
_END: Final = "</prompt>"

EditFunction = Callable[[PromptWorld, Sequence[Mapping[str, Any]]], str]


class EditorDownError(Exception):
    """A scripted editor fails."""


def prompt_in(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the prompt to edit: the last one in the messages that has its placeholder."""
    found = _PROMPT.findall("\n".join(_content(message) for message in messages))
    templates = [text for text in found if "{item}" in text]
    return (templates or found or [""])[-1]


def improved(world: PromptWorld, messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the prompt with one more word that the messages call missing.

    Without such a word, it gets any word of the world.
    """
    text = prompt_in(messages)
    said = "\n".join(_content(message) for message in messages)
    missing = {word for words in _MISSING.findall(said) for word in words.split(", ")}
    useful = [word for word in WANTED if word in missing and word not in text]
    words = useful or [word for word in (*WANTED, *NEUTRAL, *HARMFUL) if word not in text]
    return with_word(text, words[int(world.uniform("edit", world.edits) * len(words))])


def with_word(text: str, word: str) -> str:
    """Return a prompt with one more sentence."""
    return text.replace(_END, f" Use {word}.{_END}", 1)


def editors(reply: str) -> dict[str, AnswerFunction]:
    """Return the scripted editors by name.

    Args:
        reply: The form of an editor's reply that the optimiser reads, with ``%s`` for the text.
    """

    def editing(edit: EditFunction) -> AnswerFunction:
        def answer(world: PromptWorld, messages: Sequence[Mapping[str, Any]], role: str) -> str:
            if role == "critic":
                said = "\n".join(_content(message) for message in messages)
                return "\n".join(dict.fromkeys(found[0] for found in _MISSING.finditer(said)))
            return reply % edit(world, messages)

        return answer

    return {
        "good": editing(improved),
        "same": editing(lambda _, messages: prompt_in(messages)),
        "huge": editing(lambda _, messages: with_word(prompt_in(messages), "x" * 50_000)),
        "drops": editing(lambda world, asked: improved(world, asked).replace("{item}", "it")),
        "invents": editing(lambda world, asked: with_word(improved(world, asked), "{invented}")),
        "braces": editing(_with_braces),
        "constant": editing(lambda _, messages: _constant(prompt_in(messages))),
        "slow": editing(_slow),
        "wavering": editing(_wavering),
        "nonsense": lambda world, _messages, _role: f"qwerty {world.edits} uiop",
        "nothing": lambda _world, _messages, _role: "",
        "down": _down,
        "failing": _failing_after(editing(improved), 3),
        "unreliable": _unreliable(editing(improved)),
    }


def _with_braces(world: PromptWorld, messages: Sequence[Mapping[str, Any]]) -> str:
    text = improved(world, messages)
    literal = 'Reply as {"a": 1}.'
    return text if literal in text else text.replace(_END, f" {literal}{_END}", 1)


def _constant(text: str) -> str:
    return text.partition(" Use ")[0].replace(_END, "") + f" Use {HARMFUL[0]}.{_END}"


def _slow(world: PromptWorld, messages: Sequence[Mapping[str, Any]]) -> str:
    text = prompt_in(messages)
    if SLOW in text or not _by_chance(world):
        return improved(world, messages)
    return with_word(text, SLOW)


def _wavering(world: PromptWorld, messages: Sequence[Mapping[str, Any]]) -> str:
    """Improve the prompt in half of the calls, and spoil it in the others."""
    if _by_chance(world):
        return improved(world, messages)
    text = prompt_in(messages)
    words = [word for word in HARMFUL if word not in text]
    return with_word(text, words[int(world.uniform("spoil", world.edits) * len(words))])


def _by_chance(world: PromptWorld) -> bool:
    """Return True in half of the calls; a critic's calls make every second one an editor's."""
    return world.uniform("chance", world.edits) < 0.5


def _down(*_: Any) -> str:
    raise EditorDownError("the endpoint is down")


def _failing_after(answer: AnswerFunction, count: int) -> AnswerFunction:
    def failing(world: PromptWorld, messages: Sequence[Mapping[str, Any]], role: str) -> str:
        return answer(world, messages, role) if world.edits <= count else _down()

    return failing


def _unreliable(answer: AnswerFunction) -> AnswerFunction:
    """Fail in every third call."""

    def failing(world: PromptWorld, messages: Sequence[Mapping[str, Any]], role: str) -> str:
        return answer(world, messages, role) if world.edits % 3 else _down()

    return failing


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content)

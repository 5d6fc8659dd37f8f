"""Checks of a candidate before it runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final

from agl_core.interfaces import Candidate, TunedPrompt
from agl_core.types import PromptTemplate, Task
from agl_prompts._errors import CandidateRefusedError
from agl_prompts._texts import strings

_WORD: Final = re.compile(r"\w+")
_LONGEST: Final = 8
_SHORTEST: Final = 4
"""Numbers of words of a copied passage; a task with fewer words is not looked for."""
_MOST_WORDS: Final = 2000
"""Words of one task that are compared."""


def digest_of(texts: Mapping[str, str]) -> str:
    """Return a digest of texts by name, without the space around each."""
    stripped = {name: text.strip() for name, text in texts.items()}
    return sha256(json.dumps(stripped, sort_keys=True).encode()).hexdigest()


def task_digest(task: Task) -> str:
    """Return a digest of a task's content: equal ids of two data sets may be different tasks."""
    content = [task.id, task.input, task.expected, task.metadata]
    return sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def overlap(train: Sequence[Task], val: Sequence[Task]) -> int:
    """Return the number of validation tasks with the input and answer of a training task."""
    known = {_content(task) for task in train}
    return sum(_content(task) in known for task in val)


def _content(task: Task) -> str:
    return json.dumps([task.input, task.expected], sort_keys=True, default=str)


class Guards:
    """The checks of the texts of a phase."""

    def __init__(self, prompts: Mapping[str, TunedPrompt], *, max_chars: int) -> None:
        """Create the checks.

        Args:
            prompts: The prompts with the incumbent's texts.
            max_chars: Largest length of a text; an incumbent that is longer may not grow.
        """
        self._prompts = prompts
        self._max_chars = max_chars

    def check(self, candidate: Candidate) -> None:
        """Check each text of a candidate.

        Raises:
            CandidateRefusedError: a prompt does not exist, or a text is empty, too long, or has
                lost or invented a placeholder.
        """
        for name, text in candidate.items():
            prompt = self._prompts.get(name)
            if prompt is None:
                raise CandidateRefusedError(
                    "unknown",
                    f"Prompt {name!r} is not tuned in this phase; it tunes "
                    f"{', '.join(sorted(self._prompts))}",
                )
            self._check(prompt, text)

    def _check(self, prompt: TunedPrompt, text: str) -> None:
        if text == prompt.text:
            return
        if not text.strip():
            raise CandidateRefusedError("empty", f"The new text of prompt {prompt.name!r} is empty")
        most = max(self._max_chars, len(prompt.text))
        if len(text) > most:
            raise CandidateRefusedError(
                "too_long",
                f"The new text of prompt {prompt.name!r} has {len(text)} characters; at most "
                f"{most} are allowed (max_chars)",
            )
        found = PromptTemplate(template=text).placeholders
        lost = prompt.placeholders - found
        invented = found - prompt.placeholders - PromptTemplate(template=prompt.text).placeholders
        if lost or invented:
            what = [
                f"{verb} {', '.join(f'{{{name}}}' for name in sorted(names))}"
                for verb, names in (("lost", lost), ("invented", invented))
                if names
            ]
            raise CandidateRefusedError(
                "placeholders", f"The new text of prompt {prompt.name!r} {' and '.join(what)}"
            )


class Copies:
    """Passages of tasks, to find texts that contain them.

    A passage has eight words, or all words of a task with four to seven.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        """Collect the passages."""
        self._passages: set[str] = set()
        self._lengths: set[int] = set()
        for task in tasks:
            for text in strings([task.input, task.expected]):
                words = _words(text)[:_MOST_WORDS]
                if len(words) >= _SHORTEST:
                    length = min(len(words), _LONGEST)
                    self._lengths.add(length)
                    self._passages.update(_runs(words, length))

    def found(self, texts: Candidate, *, parent: Candidate) -> str:
        """Return one passage in the texts that the parent's texts do not contain; else ""."""
        for name, text in texts.items():
            before = self._in(parent.get(name, ""))
            copied = sorted(self._in(text) - before)
            if copied:
                return copied[0]
        return ""

    def _in(self, text: str) -> set[str]:
        words = _words(text)
        return {
            run for length in self._lengths for run in _runs(words, length) if run in self._passages
        }


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _runs(words: Sequence[str], length: int) -> Iterable[str]:
    return (" ".join(words[at : at + length]) for at in range(len(words) - length + 1))

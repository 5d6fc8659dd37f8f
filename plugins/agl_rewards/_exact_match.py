"""A reward for an answer that equals the expected one."""

from __future__ import annotations

import unicodedata
from typing import Any

from agl_core.config import validate
from agl_core.interfaces import AttemptRecord
from agl_core.types import Task
from agl_rewards._answer import ABSENT, AnswerOptions, answer, expected


class ExactMatchOptions(AnswerOptions):
    """Options of the reward ``exact_match``."""

    ignore_case: bool = False
    """Compare without regard to upper and lower case."""
    ignore_space: bool = True
    """Strip both sides and count any run of white space as one blank."""


class ExactMatch:
    """A reward that is 1.0 if the answer equals ``task.expected``, else 0.0.

    Texts are compared in Unicode form NFC. If only one side is text, the other is compared as its
    Python ``str``; two values that are not text are compared directly.
    """

    def __init__(self, **options: Any) -> None:
        self._options = validate(ExactMatchOptions, options, where="exact_match")

    def __call__(self, task: Task, output: Any, attempt: AttemptRecord) -> float:
        del attempt
        wanted = expected(task, "exact_match")
        found = answer(output, self._options.field)
        if found is ABSENT or found is None:
            return 0.0
        if isinstance(found, str) or isinstance(wanted, str):
            return float(self._text(found) == self._text(wanted))
        return float(found == wanted)

    def _text(self, value: Any) -> str:
        text = unicodedata.normalize("NFC", str(value))
        if self._options.ignore_space:
            text = " ".join(text.split())
        return text.casefold() if self._options.ignore_case else text

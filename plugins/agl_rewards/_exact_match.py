"""A reward for an answer that equals the expected one."""

from __future__ import annotations

import unicodedata
from typing import Any

from agl_core.config import validate
from agl_core.interfaces import AttemptRecord
from agl_core.types import Score, Task
from agl_rewards._answer import ABSENT, AnswerOptions, absent, answer, expected, shown


class ExactMatchOptions(AnswerOptions):
    """Options of the reward ``exact_match``."""

    ignore_case: bool = False
    """Compare without regard to upper and lower case."""
    ignore_space: bool = True
    """Strip both sides and count any run of white space as one blank."""


class ExactMatch:
    """A reward that is 1.0 if the answer equals ``task.expected``, else 0.0 with both as the reason.

    Texts are compared in Unicode form NFC. If only one side is text, the other is compared as its
    Python ``str``; two values that are not text are compared directly.
    """

    def __init__(self, **options: Any) -> None:
        self._options = validate(ExactMatchOptions, options, where="exact_match")

    def __call__(self, task: Task, output: Any, attempt: AttemptRecord) -> Score:
        del attempt
        wanted = expected(task, "exact_match")
        found = answer(output, self._options.field)
        if found is ABSENT:
            return absent(self._options.field)
        if found is not None and self._equal(found, wanted):
            return Score(1.0)
        return Score(0.0, f"expected {shown(wanted)}, got {shown(found)}")

    def _equal(self, found: Any, wanted: Any) -> bool:
        if isinstance(found, str) or isinstance(wanted, str):
            return self._text(found) == self._text(wanted)
        return bool(found == wanted)

    def _text(self, value: Any) -> str:
        text = unicodedata.normalize("NFC", str(value))
        if self._options.ignore_space:
            text = " ".join(text.split())
        return text.casefold() if self._options.ignore_case else text

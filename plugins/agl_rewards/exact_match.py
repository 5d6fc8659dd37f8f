"""The answer equals the expected one."""

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
    """1.0 when the answer equals ``task.expected``, else 0.0.

    Texts are compared in Unicode form NFC. When one side is text and the other is not, the other
    is compared as Python writes it; two values that are not text are compared as they are.
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

"""A reward for an answer that matches a pattern."""

from __future__ import annotations

import re
from typing import Any

from agl_core.config import validate
from agl_core.errors import ConfigError
from agl_core.interfaces import AttemptRecord
from agl_core.types import Score, Task
from agl_rewards._answer import ABSENT, AnswerOptions, absent, answer, expected, shown


class RegexOptions(AnswerOptions):
    """Options of the reward ``regex``."""

    pattern: str
    """Python regular expression."""
    full: bool = False
    """The whole answer must match, not a part of it."""
    ignore_case: bool = False
    """Upper and lower case match each other."""
    multiline: bool = False
    """``^`` and ``$`` match at every line."""
    dot_all: bool = False
    """``.`` matches line ends too."""
    group: int | str | None = None
    """Compare what this group captured with ``task.expected``; None asks for a match only."""


class Regex:
    """A reward: 1.0 if the answer, as text, matches (and the group equals the expected text).

    The reason of a 0.0 names the pattern and the answer, or what the group captured.
    """

    def __init__(self, **options: Any) -> None:
        """Compile the pattern.

        Raises:
            ConfigError: the pattern is malformed or lacks the group.
        """
        self._options = validate(RegexOptions, options, where="regex")
        flags = re.IGNORECASE if self._options.ignore_case else re.RegexFlag(0)
        flags |= re.MULTILINE if self._options.multiline else re.RegexFlag(0)
        flags |= re.DOTALL if self._options.dot_all else re.RegexFlag(0)
        try:
            self._pattern = re.compile(self._options.pattern, flags)
        except re.error as error:
            raise ConfigError(
                f"Reward 'regex': pattern {self._options.pattern!r} is malformed: {error}"
            ) from error
        group = self._options.group
        known: list[int | str] = [*range(self._pattern.groups + 1), *self._pattern.groupindex]
        if group is not None and group not in known:
            raise ConfigError(
                f"Reward 'regex': pattern {self._options.pattern!r} has no group {group!r}; "
                f"it has {known}"
            )

    def __call__(self, task: Task, output: Any, attempt: AttemptRecord) -> Score:
        del attempt
        found = answer(output, self._options.field)
        if found is ABSENT:
            return absent(self._options.field)
        find = self._pattern.fullmatch if self._options.full else self._pattern.search
        match = None if found is None else find(str(found))
        group = self._options.group
        if match is None:
            pattern = self._options.pattern
            return Score(0.0, f"{shown(found)} does not match the pattern {pattern}")
        if group is None:
            return Score(1.0)
        captured, wanted = match.group(group), str(expected(task, "regex"))
        if captured == wanted:
            return Score(1.0)
        return Score(0.0, f"expected {shown(wanted)}, group {group!r} captured {shown(captured)}")

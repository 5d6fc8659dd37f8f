"""The reward for tasks of named sets."""

from __future__ import annotations

import re
from typing import Any, Final

from agl_core.errors import RewardError
from agl_core.interfaces import AttemptRecord
from agl_core.types import Score, Task
from agl_tasks._sql import same_result

_NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_FENCE: Final = re.compile(r"```(?:sql)?\s*(.*?)```", re.DOTALL | re.IGNORECASE)
_TOLERANCE: Final = 1e-6


class TaskSet:
    """1.0 for a right answer, as the task's set compares answers, else 0.0.

    ``math`` compares the last number, ``coding`` the last line, ``reasoning`` the last word, and
    ``sql-generation`` what the query returns.
    """

    def __call__(self, task: Task, output: Any, attempt: AttemptRecord) -> Score:  # noqa: ARG002
        name = task.metadata.get("set")
        if name not in _SAME:
            raise RewardError(
                f"Reward 'task_set' got the task {task.id!r}, whose metadata names the set {name!r}: "
                f"it scores tasks of {sorted(_SAME)}; choose another reward for others"
            )
        text = output if isinstance(output, str) else str(output or "")
        right = _SAME[name](text, task)
        return Score(right, "" if right else f"expected {task.expected}")


def _math(text: str, task: Task) -> bool:
    found = _NUMBER.findall(text)
    number = float(found[-1].replace(",", "")) if found else None
    return number is not None and abs(number - float(task.expected)) <= _TOLERANCE


def _coding(text: str, task: Task) -> bool:
    return _last(text.strip().splitlines()).strip().strip("`") == task.expected


def _reasoning(text: str, task: Task) -> bool:
    return _last(re.findall(r"\w+", text)).casefold() == str(task.expected).casefold()


def _sql(text: str, task: Task) -> bool:
    fenced = _FENCE.findall(text)
    query = (fenced[-1] if fenced else text).strip().rstrip(";")
    return same_result(task.metadata, query, str(task.expected))


def _last(parts: list[str]) -> str:
    return parts[-1] if parts else ""


_SAME: Final = {"math": _math, "coding": _coding, "reasoning": _reasoning, "sql-generation": _sql}

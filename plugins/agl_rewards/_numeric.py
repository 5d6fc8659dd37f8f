"""A reward for a number that is close enough to the expected one."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from numbers import Real
from typing import Any, Literal

from pydantic import Field

from agl_core.config import validate
from agl_core.errors import RewardError
from agl_core.interfaces import AttemptRecord
from agl_core.types import Score, Task
from agl_rewards._answer import ABSENT, AnswerOptions, absent, answer, expected, shown

_NUMBER = re.compile(
    r"""
    (?<!\w)(?<!\d\.)                            # not the tail of a word or of another number
    (?P<sign>[-+\u2212])?(?:[$\u20ac\u00a3\u00a5]\s?)?
    (?P<digits>
        \d{1,3}(?:[,_'\u2019\u00a0\u2009\u202f]\d{3})+(?![\d])(?:\.\d+)?   # 1,234,567.8
        | \d+(?:\.\d+)?
        | (?<!\.)\.\d+                           # .5, but not the end of an ellipsis
    )
    (?P<exponent>[eE][-+]?\d+)?
    (?P<percent>\s?%)?
    """,
    re.VERBOSE,
)
_ROUNDING = 1e-9
"""Default of `abs_tol`, which a reason does not mention."""
_SEPARATORS = re.compile(r"[,_'\u2019\u00a0\u2009\u202f]")


class NumericOptions(AnswerOptions):
    """Options of the reward ``numeric``."""

    abs_tol: float = Field(default=_ROUNDING, ge=0, allow_inf_nan=False)
    """Largest difference that still counts as equal."""
    rel_tol: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The same as a share of the expected number."""
    pick: Literal["last", "first", "only"] = "last"
    """Which number of a text counts; ``only`` scores 0 when there are several."""


class Numeric:
    """A reward: 1.0 when ``|answer - expected| <= max(abs_tol, rel_tol * |expected|)``, else 0.0.

    Numbers are found inside text: with a sign (also U+2212), a currency sign, thousands
    separators (``1,234.5``, ``1'234``, ``1 234`` with a no-break space), an exponent or a percent
    sign, which divides by 100. The decimal mark is a point. An answer without a number scores 0.
    The reason of a 0.0 names the number expected and the one found.
    """

    def __init__(self, **options: Any) -> None:
        self._options = validate(NumericOptions, options, where="numeric")

    def __call__(self, task: Task, output: Any, attempt: AttemptRecord) -> Score:
        del attempt
        wanted = as_number(expected(task, "numeric"), pick=self._options.pick)
        if wanted is None:
            raise RewardError(
                f"Reward 'numeric': the expected answer {task.expected!r} of task {task.id!r} "
                f"holds no finite number (pick={self._options.pick!r}): correct the row"
            )
        found = answer(output, self._options.field)
        if found is ABSENT:
            return absent(self._options.field)
        value = as_number(found, pick=self._options.pick)
        if value is None:
            what = " as the only number" if self._options.pick == "only" else ""
            return Score(0.0, f"expected {wanted}{what}, got {shown(found)}")
        tolerance = max(self._options.abs_tol, self._options.rel_tol * abs(wanted))
        if abs(value - wanted) <= tolerance:
            return Score(1.0)
        within = f" within {tolerance:g}" if tolerance > _ROUNDING else ""
        return Score(0.0, f"expected {wanted}{within}, got {value}")


def numbers(text: str) -> list[float]:
    """Return every finite number in a text, in order."""
    found: list[float] = []
    for match in _NUMBER.finditer(text):
        value = float(_SEPARATORS.sub("", match["digits"]) + (match["exponent"] or ""))
        if match["sign"] in ("-", "\u2212"):
            value = -value
        if match["percent"]:
            value /= 100
        if math.isfinite(value):
            found.append(value)
    return found


def as_number(value: Any, *, pick: Literal["last", "first", "only"] = "last") -> float | None:
    """Return the number that a value is or contains; None if it has none or too many."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (Real, Decimal)):
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None
    if not isinstance(value, str):
        return None
    found = numbers(value)
    if not found or (pick == "only" and len(found) > 1):
        return None
    return found[0 if pick == "first" else -1]

"""Numbers and times as text: the filters of the templates."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any, Final

NONE: Final = "\u2013"
"""A dash, for no number."""
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86_400
_SUB_SECOND: Final = 10
_LARGE: Final = 100_000


def count(value: float | None) -> str:
    """Return a whole number with separators."""
    return NONE if value is None else f"{value:,.0f}"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with a fixed number of digits, or in powers of ten."""
    if value is None or not math.isfinite(value):
        return NONE
    if value != 0 and (abs(value) >= _LARGE or abs(value) < 10**-digits / 2):
        return f"{value:.1e}"
    return f"{value:.{digits}f}".replace("-", "\u2212")


def signed(value: float | None, digits: int = 3) -> str:
    """Return a number with its sign."""
    if value is None or not math.isfinite(value):
        return NONE
    return ("+" if value > 0 else "") + number(value, digits)


def percent(value: float | None) -> str:
    """Return a share as percent."""
    return NONE if value is None or not math.isfinite(value) else f"{100 * value:.0f} %"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < _MINUTE:
        return _short(seconds)
    if seconds < _HOUR:
        return f"{int(seconds // _MINUTE)} min {int(seconds % _MINUTE):02} s"
    if seconds < _DAY:
        return f"{int(seconds // _HOUR)} h {int(seconds % _HOUR // _MINUTE):02} min"
    return f"{int(seconds // _DAY)} d {int(seconds % _DAY // _HOUR)} h"


def _short(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < _SUB_SECOND else f"{seconds:.1f} s"


def moment(at: float | None) -> str:
    """Return a time in ISO form, which the browser replaces by its own time zone."""
    if not at:
        return ""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""


FILTERS: Final[dict[str, Any]] = {
    "count": count,
    "number": number,
    "signed": signed,
    "percent": percent,
    "duration": duration,
    "moment": moment,
}

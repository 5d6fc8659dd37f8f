"""Warnings about names of other libraries, each with the name of today."""

from __future__ import annotations

import warnings
from functools import cache


class OldNameWarning(FutureWarning):
    """A program uses a name of another library, which agl-core spells otherwise."""


@cache
def renamed(old: str, today: str) -> None:
    """Warn once in a process that `old` is `today` in agl-core."""
    warnings.warn(
        f"{old} is a name of another library; today's name is {today} (docs/migrate.md)",
        OldNameWarning,
        stacklevel=3,
    )

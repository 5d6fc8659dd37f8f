"""Numbers that say how good something was, and exactly what they are about."""

from __future__ import annotations

import math
from typing import Any, SupportsFloat

import msgspec


class RewardTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What a reward is about; nothing set means the whole attempt.

    At most one of `call`, `agent_run` and `agent` is set, except that `agent` may be set with
    `agent_run`, to name the agent of the run: agents may share a run id. `choice` needs `call`.
    """

    call: str | None = None
    """Call id."""
    choice: int | None = None
    """Index of the choice of an ``n > 1`` call."""
    agent_run: str | None = None
    agent: str | None = None

    @property
    def units(self) -> list[str]:
        """Which of `call`, `agent` and `agent_run` are named; an agent's run is one unit."""
        agent = self.agent if self.agent_run is None else None
        units = {"call": self.call, "agent": agent, "agent_run": self.agent_run}
        return [name for name, unit in units.items() if unit is not None]

    @property
    def ambiguous(self) -> bool:
        """It names several units, or a choice of no call."""
        return len(self.units) > 1 or (self.choice is not None and self.call is None)


ATTEMPT = RewardTarget()


class Reward(msgspec.Struct, frozen=True, kw_only=True):
    """One finite number on one channel for one target.

    Several rewards for one target and channel are summed.
    """

    value: float
    channel: str = "main"
    target: RewardTarget = ATTEMPT
    source: str = ""
    """Who gave it, for reports: a reward function's name, or empty for ``emit_reward``."""


def finite_number(value: Any) -> float | None:
    """The number behind a reward; None if there is not exactly one, or it is not finite.

    True is 1.0 and False is 0.0. Anything that converts to one float counts, also from array
    libraries; text does not.
    """
    if not isinstance(value, SupportsFloat):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return number if math.isfinite(number) else None

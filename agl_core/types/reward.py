"""Rewards and their targets."""

from __future__ import annotations

import math
from typing import Any, SupportsFloat

import msgspec


class RewardTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a reward; without any field, the whole attempt.

    At most one of `call`, `agent_run` and `agent` is set. Exception: `agent` with `agent_run` names
    the agent of the run, as agents may share a run id. `choice` needs `call`.
    """

    call: str | None = None
    """Call id."""
    choice: int | None = None
    """Index of the choice of an ``n > 1`` call."""
    agent_run: str | None = None
    agent: str | None = None

    @property
    def units(self) -> list[str]:
        """The fields set among `call`, `agent` and `agent_run`; an agent with its run is one."""
        agent = self.agent if self.agent_run is None else None
        units = {"call": self.call, "agent": agent, "agent_run": self.agent_run}
        return [name for name, unit in units.items() if unit is not None]

    @property
    def ambiguous(self) -> bool:
        """Whether it names several units, or a choice without a call."""
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
    """The reward function's name, for reports; empty for ``emit_reward``."""


def finite_number(value: Any) -> float | None:
    """Return a reward as a number; None if it is not exactly one finite number.

    True is 1.0 and False is 0.0. Any value that converts to one float is valid, including values of
    array libraries; text is not.
    """
    if not isinstance(value, SupportsFloat):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return number if math.isfinite(number) else None

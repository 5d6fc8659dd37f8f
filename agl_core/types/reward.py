"""Numbers that say how good something was, and exactly what they are about."""

from __future__ import annotations

import msgspec


class RewardTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What a reward is about; nothing set means the whole attempt.

    At most one of `call`, `agent_run` and `agent` is set; `choice` needs `call`.
    """

    call: str | None = None
    """Call id."""
    choice: int | None = None
    """Index of the choice of an ``n > 1`` call."""
    agent_run: str | None = None
    agent: str | None = None


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

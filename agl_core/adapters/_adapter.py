"""The adapter of a run, which converts an attempt's spans to trajectories and returns."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from agl_core.adapters._select import AgentSelector
from agl_core.errors import ConfigError
from agl_core.interfaces import AdaptedAttempt, AttemptRecord
from agl_core.types import Policy


class TrajectoryAdapter:
    """The adapter that converts one ended attempt to trajectories and returns per trained agent."""

    def __init__(
        self,
        agents: Sequence[str],
        *,
        policies: Sequence[Policy],
        channel_weights: Mapping[str, float] | None = None,
    ) -> None:
        """Build an adapter.

        Args:
            agents: Exact names or globs of the agents to train.
            policies: All policies in config order.
            channel_weights: Weight of each reward channel; channels without one have weight 1.

        Raises:
            ConfigError: an agent pattern is unusable or a weight is not finite.
        """
        self._selector = AgentSelector(agents)
        self._policies = tuple(policies)
        self._weights = dict(channel_weights or {})
        for channel, weight in self._weights.items():
            if not math.isfinite(weight):
                raise ConfigError(f"Weight {weight} of channel {channel!r} must be finite")

    def adapt(self, record: AttemptRecord) -> AdaptedAttempt:
        """See `agl_core.interfaces.Adapter.adapt`."""
        # The rest of the package is imported by the first attempt, not before a run starts.
        from agl_core.adapters._assemble import adapt_trained  # noqa: PLC0415

        return adapt_trained(
            record,
            agents=self._selector,
            policies=self._policies,
            channel_weights=self._weights,
        )

    def check(self, seen: Collection[str]) -> None:
        """See `agl_core.interfaces.Adapter.check`."""
        self._selector.check(seen)

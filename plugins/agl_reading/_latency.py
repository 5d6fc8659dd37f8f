"""Quantiles of the durations of model calls, from counts by interval."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agl_reading._rows import Sum

_GROWTH: Final = 1.15
"""Ratio of the bounds of an interval: a quantile is at most 7 % off."""
_LOG: Final = math.log(_GROWTH)
_LEAST_S: Final = 0.001


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """How long the model calls of an agent took, from their arrival at the gateway to their end."""

    policy: str
    agent: str
    calls: int
    p50_s: float
    p95_s: float


def latency_name(policy: str, agent: str, seconds: float) -> str:
    """Return the name under which a call's duration is counted."""
    interval = math.ceil(math.log(max(seconds, _LEAST_S) / _LEAST_S) / _LOG)
    return f"{policy}\n{agent}\n{interval}"


def latencies(sums: Iterable[Sum]) -> list[Latency]:
    """Return the quantiles by policy and agent, the agents with most calls first.

    Args:
        sums: Sums of the kind ``latency``; others are ignored.
    """
    counted: defaultdict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    for each in sums:
        if each.kind == "latency":
            policy, agent, interval = each.name.rsplit("\n", 2)
            own = counted[policy, agent]
            own[int(interval)] = own.get(int(interval), 0) + each.n
    found = [
        Latency(
            policy=policy,
            agent=agent,
            calls=sum(own.values()),
            p50_s=_quantile(own, 0.5),
            p95_s=_quantile(own, 0.95),
        )
        for (policy, agent), own in counted.items()
    ]
    return sorted(found, key=lambda each: (-each.calls, each.policy, each.agent))


def _quantile(counts: Mapping[int, int], share: float) -> float:
    """Return the middle of the interval in which the quantile lies."""
    left = share * sum(counts.values())
    last = 0
    for last in sorted(counts):
        left -= counts[last]
        if left <= 0:
            break
    return _LEAST_S * _GROWTH ** (last - 0.5)

"""From what a reward function returned to checked rewards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from agl_core.errors import RewardError
from agl_core.tracing.values import represent
from agl_core.types import Reward, finite_number

_EXPECTED = "return a finite number, True or False, or a mapping of channel to number"


def as_rewards(value: Any, *, source: str, channel: str) -> list[Reward]:
    """Check and name what a reward function returned.

    Args:
        value: A number (booleans are 0 and 1) for `channel`; a mapping of channel to number; a
            `Reward`, or a list of them, where a call, run or agent is to be rewarded apart.
        source: Name of the function, kept on the rewards and put into errors.
        channel: Of a bare number.

    Raises:
        RewardError: the value is missing, not finite or of another type; a mapping or list is
            empty; a target names several units.
    """
    if isinstance(value, Reward):
        return [_checked(value, source)]
    if isinstance(value, (list, tuple)) and value:
        items = cast("list[Any]", value)
        if all(isinstance(item, Reward) for item in items):
            return [_checked(item, source) for item in items]
    if isinstance(value, Mapping):
        return list(_channels(cast("Mapping[Any, Any]", value), source))
    return [Reward(value=_number(value, source, ""), channel=channel, source=source)]


def _channels(values: Mapping[Any, Any], source: str) -> Iterator[Reward]:
    if not values:
        raise RewardError(f"Reward {source!r} returned an empty mapping: {_EXPECTED}")
    for name, value in values.items():
        if not isinstance(name, str) or not name:
            raise RewardError(
                f"Reward {source!r} returned the channel name {name!r}: name channels with text"
            )
        number = _number(value, source, f" for channel {name!r}")
        yield Reward(value=number, channel=name, source=source)


def _number(value: Any, source: str, where: str) -> float:
    number = finite_number(value)
    if number is None:
        obvious = value is None or isinstance(value, float)
        kind = "" if obvious else f" of type {type(value).__name__!r}"
        raise RewardError(f"Reward {source!r} returned {_short(value)}{kind}{where}: {_EXPECTED}")
    return number


def _checked(reward: Reward, source: str) -> Reward:
    target = reward.target
    if target.ambiguous:
        raise RewardError(
            f"Reward {source!r} aims at {target}: name one of call, agent_run and agent; a choice "
            f"needs its call"
        )
    aims: tuple[Any, ...] = (target.call, target.agent, target.agent_run)
    names: list[Any] = [reward.channel, *(aim for aim in aims if aim is not None)]
    if not all(isinstance(name, str) for name in names):
        raise RewardError(
            f"Reward {source!r} has channel {reward.channel!r} and {target}: name them with text"
        )
    number = _number(reward.value, source, f" for channel {reward.channel!r}")
    return Reward(
        value=number, channel=reward.channel, target=target, source=reward.source or source
    )


def _short(value: Any) -> str:
    text = represent(value)
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004

"""Running reward functions on one ended attempt, and checking their results."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from msgspec.structs import replace

from agl_core.errors import ConfigError, RewardError
from agl_core.interfaces import AttemptRecord, RewardFunction
from agl_core.runner._agent_loop import on_agent_loop
from agl_core.threads import UserResult, in_thread, is_async
from agl_core.tracing import bounded, describe, represent
from agl_core.types import Reward, Score, finite_number

_EXPECTED: Final = (
    "return a finite number, True or False, a Score, or a mapping of channel to these"
)
_MAX_SHOWN: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedReward:
    """A reward function with its name in reports and errors."""

    name: str
    function: RewardFunction
    channel: str = "main"
    """Channel of a plain number; a mapping names its channels. Channel weights are applied later,
    in the return."""


class Scorer:
    """Scores attempts with several reward functions, in order.

    Each plain function runs in its own thread, so that it cannot block other rollouts, with a copy
    of the current context, so that it belongs to its attempt. Coroutine functions run on the
    agents' event loop.
    """

    def __init__(self, rewards: Sequence[NamedReward]) -> None:
        """Check the functions' signatures.

        Raises:
            ConfigError: a function does not take ``(task, output, attempt)``, or two rewards have
                the same name.
        """
        names = [reward.name for reward in rewards]
        for reward in rewards:
            if names.count(reward.name) > 1:
                raise ConfigError(
                    f"Two rewards are named {reward.name!r}: give each a name of its own"
                )
            _check_signature(reward)
        self._rewards = tuple(rewards)

    async def __call__(self, record: AttemptRecord, output: Any) -> list[Reward]:
        """Return the rewards of one attempt; several may have the same channel.

        Args:
            record: The attempt with its spans.
            output: The agent's return value.

        Raises:
            RewardError: a function raised, or returned a value that is not a reward.
        """
        scored: list[Reward] = []
        for reward in self._rewards:
            value = await _call(reward, record, output)
            scored += as_rewards(value, source=reward.name, channel=reward.channel)
        return scored


async def _call(reward: NamedReward, record: AttemptRecord, output: Any) -> Any:
    given = (record.rollout.task, output, record)
    if is_async(reward.function):
        return _returned(reward, await on_agent_loop(reward.function, *given))
    outcome = await in_thread(reward.function, *given, name=f"agl-{record.attempt.id}")
    value = _returned(reward, outcome)
    if inspect.isawaitable(value):
        return _returned(reward, await on_agent_loop(lambda: value))
    return value


def _returned(reward: NamedReward, outcome: UserResult) -> Any:
    error = outcome.error
    if isinstance(error, RewardError):
        raise error
    if error is not None:
        raise RewardError(f"Reward {reward.name!r} raised {describe(error)}") from error
    return outcome.value


def _check_signature(reward: NamedReward) -> None:
    if not callable(reward.function):
        raise ConfigError(
            f"Reward {reward.name!r} is {reward.function!r}, which cannot be called: "
            f"give reward(task, output, attempt)"
        )
    try:
        signature = inspect.signature(reward.function)
    except ValueError:  # some C functions have none
        return
    try:
        signature.bind(None, None, None)
    except TypeError as error:
        raise ConfigError(
            f"Reward {reward.name!r} has the signature {signature}: it must accept "
            f"(task, output, attempt)"
        ) from error


def as_rewards(value: Any, *, source: str, channel: str) -> list[Reward]:
    """Check a reward function's result and convert it to rewards.

    Args:
        value: A number (booleans are 0 and 1) or `Score` for `channel`; a mapping of channel to
            these; a `Reward` or a list of them, to reward a call, run or agent.
        source: Name of the function, for the rewards and errors.
        channel: Channel of a plain number.

    Raises:
        RewardError: the value is missing, not finite or of another type; a mapping or list is
            empty; a target names several units.
    """
    items = cast("list[Any]", value if isinstance(value, (list, tuple)) else [value])
    if items and all(isinstance(item, Reward) for item in items):
        return [_checked(item, source) for item in items]
    if isinstance(value, Mapping):
        return list(_channels(cast("Mapping[Any, Any]", value), source))
    return [_reward(value, source, channel, "")]


def _channels(values: Mapping[Any, Any], source: str) -> Iterator[Reward]:
    if not values:
        raise RewardError(f"Reward {source!r} returned an empty mapping: {_EXPECTED}")
    for name, value in values.items():
        if not isinstance(name, str) or not name:
            raise RewardError(
                f"Reward {source!r} returned the channel name {name!r}: name channels with text"
            )
        yield _reward(value, source, name, f" for channel {name!r}")


def _reward(value: Any, source: str, channel: str, where: str) -> Reward:
    number = finite_number(value)
    if number is None:
        obvious = value is None or isinstance(value, float)
        kind = "" if obvious else f" of type {type(value).__name__!r}"
        raise RewardError(f"Reward {source!r} returned {_short(value)}{kind}{where}: {_EXPECTED}")
    why = value.why if isinstance(value, Score) else ""
    return Reward(value=number, channel=channel, source=source, why=why)


def _checked(reward: Reward, source: str) -> Reward:
    target = reward.target
    target.check(f"Reward {source!r}")
    aims: tuple[Any, ...] = (target.call, target.agent, target.agent_run)
    names: list[Any] = [reward.channel, reward.why, *(aim for aim in aims if aim is not None)]
    if not all(isinstance(name, str) for name in names):
        raise RewardError(
            f"Reward {source!r} has channel {reward.channel!r}, reason {_short(reward.why)} and "
            f"{target}: name them with text"
        )
    made = _reward(reward.value, source, reward.channel, f" for channel {reward.channel!r}")
    return replace(made, target=target, source=reward.source or source, why=reward.why or made.why)


def _short(value: Any) -> str:
    return bounded(represent(value), _MAX_SHOWN)[0]

"""Run reward functions on one ended attempt."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agl_core.errors import ConfigError, RewardError
from agl_core.interfaces import AttemptRecord, RewardFunction
from agl_core.rewards.values import as_rewards
from agl_core.tracing.agent_loop import on_agent_loop
from agl_core.tracing.threads import Outcome, in_thread, is_async
from agl_core.types import Reward


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedReward:
    """A reward function with the name that reports and errors use."""

    name: str
    function: RewardFunction
    channel: str = "main"
    """Of a bare number; a mapping names its channels itself. Weights belong to channels and are
    applied where returns are formed."""


class Scorer:
    """Scores attempts with several reward functions, in order.

    Plain functions run each in a thread of its own with a copy of the current context, so that they
    never block other rollouts, however long they hang, and still know which attempt is theirs;
    coroutine functions run on the loop of the agents.
    """

    def __init__(self, rewards: Sequence[NamedReward]) -> None:
        """Check the functions' signatures.

        Raises:
            ConfigError: one cannot be called as ``reward(task, output, attempt)``, or two rewards
                share a name.
        """
        names = [reward.name for reward in rewards]
        for reward in rewards:
            if names.count(reward.name) > 1:
                raise ConfigError(
                    f"Two rewards are named {reward.name!r}: reports could not tell them apart"
                )
            _check_signature(reward)
        self._rewards = tuple(rewards)

    async def __call__(self, record: AttemptRecord, output: Any) -> list[Reward]:
        """Rewards of one attempt; several may share a channel.

        Args:
            record: The attempt with its spans.
            output: What the agent returned, as it is.

        Raises:
            RewardError: a function raised, or returned something that is no reward.
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


def _returned(reward: NamedReward, outcome: Outcome) -> Any:
    if isinstance(outcome.error, RewardError):
        raise outcome.error
    if outcome.error is not None:
        raise _raised(reward, outcome.error) from outcome.error
    return outcome.value


def _raised(reward: NamedReward, error: BaseException) -> RewardError:
    return RewardError(f"Reward {reward.name!r} raised {type(error).__name__}: {error}")


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

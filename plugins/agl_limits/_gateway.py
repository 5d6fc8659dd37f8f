"""Limits of the model requests that a gateway accepts."""

from __future__ import annotations

import math
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from agl_core.config import RunConfig
from agl_core.interfaces import Identity, Problem
from agl_limits._limiter import Limiter
from agl_limits._middleware import limit_headers
from agl_limits._options import LimitsOptions, options_of
from agl_limits._use import LimitUse

_TOO_MANY: Final = 429
_CODE: Final = "rate_limited"


class _Asked(NamedTuple):
    """One model request."""

    agent: str
    key: str
    address: str
    policy: str


class _Limit:
    """One rate, which holds for each name separately."""

    def __init__(
        self, name: str, rate: str, of: Callable[[_Asked], str], options: LimitsOptions
    ) -> None:
        """Create the limit.

        Args:
            name: What is limited: key, agent, policy or address.
            rate: See `agl_limits.parse_rate`.
            of: Returns the name of a request at which it counts.
            options: Where to count.
        """
        self.of = of
        self.limiter = Limiter(rate, redis=options.address, space=f"{options.prefix}/{name}")
        self.use = LimitUse(name=name, rate=rate)

    async def check(self, asked: _Asked) -> None:
        """Count a request.

        Raises:
            Problem: 429; it is one too many.
        """
        verdict = await self.limiter.refusal(self.of(asked))
        if verdict is None:
            self.use.allowed += 1
            return
        self.use.refused += 1
        seconds = max(1, math.ceil(verdict.reset_s))
        kind, _, who = self.use.name.partition(" ")
        who = who or ("" if kind == "key" else self.of(asked))
        message = (
            f"Too many model requests of {kind}{f' {who!r}' if who else ''}: {self.use.rate} are "
            f"allowed; send it again after {seconds} s"
        )
        problem = Problem(_TOO_MANY, _CODE, message, retry=True)
        problem.headers = limit_headers(verdict, name=kind)
        raise problem


class GatewayLimits:
    """Refuses model requests beyond the rates; implements `agl_core.interfaces.Admission`.

    A request counts at each limit in turn: that of its agent's name, key, agent, policy, address.
    One that is refused counts at the limits before the one that refuses it.
    """

    def __init__(self, options: LimitsOptions) -> None:
        """Create the limits; nothing is connected yet.

        Raises:
            ConfigError: the address of Redis is wrong.
            MissingExtraError: a package is not installed.
        """
        self._agents = {
            pattern: _Limit(f"agent {pattern}", rate, _agent, options)
            for pattern, rate in options.agents.items()
        }
        rates = {
            "key": (options.per_key, _key),
            "agent": (options.per_agent, _agent),
            "policy": (options.per_policy, _policy),
            "address": (options.per_address, _address),
        }
        self._limits = {
            name: _Limit(name, rate, of, options) for name, (rate, of) in rates.items() if rate
        }

    @property
    def use(self) -> list[LimitUse]:
        """How much of each limit was used."""
        return [limit.use for limit in self._all]

    @property
    def _all(self) -> list[_Limit]:
        return [*self._agents.values(), *self._limits.values()]

    async def admit(self, identity: Identity, *, key: str, address: str, policy: str) -> None:
        """Count a model request.

        Raises:
            Problem: 429; it is one too many.
        """
        asked = _Asked(identity.known_as, key, address, policy)
        named = (each for name, each in self._agents.items() if fnmatchcase(asked.agent, name))
        own = next(named, None)
        if own is not None:
            await own.check(asked)
        for name, limit in self._limits.items():
            if own is None or name != "agent":
                await limit.check(asked)

    async def close(self) -> None:
        """Close the connections to Redis."""
        for limit in self._all:
            await limit.limiter.aclose()


def make_admission(config: RunConfig) -> GatewayLimits:
    """Return the limits of a configuration's gateway.

    Raises:
        ConfigError: an option is wrong.
        MissingExtraError: a package is not installed.
    """
    return GatewayLimits(options_of(config))


def _key(asked: _Asked) -> str:
    return asked.key


def _agent(asked: _Asked) -> str:
    return asked.agent


def _policy(asked: _Asked) -> str:
    return asked.policy


def _address(asked: _Asked) -> str:
    return asked.address

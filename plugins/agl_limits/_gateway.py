"""Limits of the model requests that a gateway accepts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from operator import itemgetter
from pathlib import Path
from typing import Final

from agl_endpoints import THROTTLES
from agl_reading import ServiceLog, ServiceState

from agl_core.config import RunConfig
from agl_core.interfaces import Identity, Problem
from agl_limits._limiter import Limiter
from agl_limits._middleware import limit_headers
from agl_limits._options import LimitsOptions, options_of
from agl_limits._outside import Throttles
from agl_limits._use import LimitUse

_TOO_MANY: Final = 429
_CODE: Final = "rate_limited"
_COLUMNS: Final = ["Limit", "Rate", "Sent", "Refused or waited", "Seconds waited"]


_Asked = tuple[str, str, str, str]
"""Of one model request: agent, key, address, policy."""
_agent: Final = itemgetter(0)
_key: Final = itemgetter(1)
_address: Final = itemgetter(2)
_policy: Final = itemgetter(3)


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

    def passes(self, asked: _Asked) -> bool:
        """Count a request if this process counts alone and allows it; else `check` decides."""
        passes = self.limiter.allows_here(self.of(asked))
        self.use.allowed += passes
        return passes

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

    def __init__(self, options: LimitsOptions, log: ServiceLog | None = None) -> None:
        """Create the limits; nothing is connected yet.

        Args:
            options: Those of ``[limits]``.
            log: Where the dashboard reads their use; nowhere when None.

        Raises:
            ConfigError: the address of Redis is wrong.
            MissingExtraError: a package is not installed.
        """
        self._log = log
        throttles = THROTTLES.get()
        self._throttles = throttles if isinstance(throttles, Throttles) else None
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
        asked = (identity.known_as, key, address, policy)
        try:
            for limit in self._of(asked[0]):
                if not limit.passes(asked):
                    await limit.check(asked)
        finally:
            self._state()

    def _of(self, agent: str) -> Iterable[_Limit]:
        """Return the limits of an agent's requests."""
        for pattern, own in self._agents.items():
            if fnmatchcase(agent, pattern):
                return [own, *(limit for name, limit in self._limits.items() if name != "agent")]
        return self._limits.values()

    def _state(self, *, last: bool = False) -> None:
        if self._log is not None:
            self._log.write(self._made_state, last=last)

    def _made_state(self) -> ServiceState:
        rows: list[list[str | int | float]] = [
            [f"at the gateway, {each.name}", each.rate, each.allowed, each.refused, ""]
            for each in self.use
        ]
        outside = self._throttles.use if self._throttles is not None else []
        rows += [
            [each.name, each.rate, each.allowed, each.refused, round(each.waited_s, 1)]
            for each in outside
        ]
        return ServiceState(title="Limits", columns=_COLUMNS, rows=rows)

    async def close(self) -> None:
        """Write the last state, and close the connections to Redis."""
        self._state(last=True)
        for limit in self._all:
            await limit.limiter.aclose()


def make_admission(config: RunConfig) -> GatewayLimits:
    """Return the limits of a configuration's gateway.

    Raises:
        ConfigError: an option is wrong.
        MissingExtraError: a package is not installed.
    """
    return GatewayLimits(
        options_of(config), ServiceLog(Path(config.directory) / config.name, "limits")
    )

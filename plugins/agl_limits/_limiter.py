"""Count events in a sliding window, in memory or in Redis."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from agl_core.errors import AglError, ConfigError, MissingExtraError
from agl_core.text import exact_bytes

_log = logging.getLogger(__name__)

_AGAIN_S: Final = 10.0
"""Seconds for which a Redis that failed is not asked again."""
_OPTIONS: Final[dict[str, Any]] = {"socket_connect_timeout": 1.0, "socket_timeout": 1.0}
"""Time limits of one request to Redis, in seconds."""
_ANY: Final = "redis://localhost:6379"
"""An address that is not used: the connections have theirs."""
_SCHEMES: Final = ("redis://", "rediss://", "unix://")


class RateLimitError(AglError):
    """A call was refused because it was one too many."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        """Set the message and after how many seconds the call is allowed."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RateVerdict:
    """The answer to one event."""

    allowed: bool
    limit: int
    """Events that a window allows."""
    remaining: int
    """Events that the window still allows."""
    window_s: int
    reset_s: float
    """Seconds until the window has counted down: after them a refused event is allowed."""


def parse_rate(rate: str) -> Any:
    """Return the ``limits.RateLimitItem`` of a text such as ``100/minute``, ``5 per 10 seconds`` or ``2000/day``.

    Raises:
        ConfigError: the text is no rate, or several.
        MissingExtraError: the package ``limits`` is not installed.
    """
    try:
        from limits import parse_many  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("limits", needs="limits>=5.8", extra="limits") from error
    try:
        found = parse_many(rate)
    except ValueError:
        found = []
    if len(found) == 1 and found[0].amount > 0 and found[0].get_expiry() > 0:
        return found[0]
    raise ConfigError(f"{rate!r} is no rate: write a number and a unit, such as '100/minute'")


class Limiter:
    """Allows so many events a window for each name, in this process or in all that share a Redis.

    In memory the window slides exactly: no span of its length has more events than the rate. In
    Redis it is weighted: the events of the last full window count by the part of it that is still
    in the sliding one. While Redis does not answer, this process counts by itself; that is logged
    once, and Redis is asked again after 10 s. Methods may be called from any thread.
    """

    def __init__(self, rate: str, *, redis: str = "", space: str = "") -> None:
        """Create a limiter; nothing is connected yet.

        Args:
            rate: See `parse_rate`.
            redis: Address of a Redis, ``redis://HOST:PORT/DB``; empty: count in this process.
            space: Separates the counts of limiters that share a Redis.

        Raises:
            ConfigError: the rate or the address is wrong.
            MissingExtraError: a package is not installed.
        """
        self._item = parse_rate(rate)
        self._space = space or "agl"
        self._local = _local()
        self._shared = _Shared(redis) if redis else None

    @property
    def limit(self) -> int:
        """Events that a window allows."""
        return self._item.amount

    def hit(self, *who: str, cost: int = 1) -> RateVerdict:
        """Count an event of the named one, if it is allowed.

        Args:
            who: Whose event it is: a key, an agent, an address. It is hashed before it is stored.
            cost: As how many events it counts.
        """
        names = self._names(who)
        shared = self._shared
        if shared is not None and shared.asked:
            try:
                return self._verdict(shared.strategy, names, cost)
            except shared.failures as error:
                shared.failed(error)
        return self._verdict(self._local, names, cost)

    async def ahit(self, *who: str, cost: int = 1) -> RateVerdict:
        """Do as `hit` does, without blocking the event loop while Redis is asked."""
        names = self._names(who)
        shared = self._shared
        if shared is not None and shared.asked:
            try:
                return await self._averdict(shared.astrategy, names, cost)
            except shared.failures as error:
                shared.failed(error)
        return self._verdict(self._local, names, cost)

    def close(self) -> None:
        """Close the connections of threads without an event loop. Idempotent."""
        if self._shared is not None:
            self._shared.close()

    async def aclose(self) -> None:
        """Close these and those of this event loop. Idempotent."""
        if self._shared is not None:
            await self._shared.aclose()

    def _names(self, who: tuple[str, ...]) -> tuple[str, ...]:
        text = exact_bytes("\0".join(who))
        return (self._space, hashlib.sha256(text).hexdigest()[:32])

    def _verdict(self, strategy: Any, names: tuple[str, ...], cost: int) -> RateVerdict:
        allowed = strategy.hit(self._item, *names, cost=cost)
        return self._stated(allowed, strategy.get_window_stats(self._item, *names))

    async def _averdict(self, strategy: Any, names: tuple[str, ...], cost: int) -> RateVerdict:
        allowed = await strategy.hit(self._item, *names, cost=cost)
        return self._stated(allowed, await strategy.get_window_stats(self._item, *names))

    def _stated(self, allowed: bool, window: Any) -> RateVerdict:
        return RateVerdict(
            allowed=allowed,
            limit=self._item.amount,
            remaining=max(0, int(window.remaining)),
            window_s=self._item.get_expiry(),
            reset_s=max(0.0, window.reset_time - time.time()),
        )


def _local() -> Any:
    from limits.storage import MemoryStorage  # noqa: PLC0415
    from limits.strategies import MovingWindowRateLimiter  # noqa: PLC0415

    return MovingWindowRateLimiter(MemoryStorage())


class _Shared:
    """The counts in a Redis, and whether it answers."""

    def __init__(self, url: str) -> None:
        if find_spec("redis") is None:
            raise MissingExtraError("limits", needs="redis>=8", extra="limits")
        if not url.startswith(_SCHEMES):
            raise ConfigError(
                f"The address of Redis begins with none of {', '.join(_SCHEMES)}: write "
                f"redis://HOST:PORT"
            )
        from redis.exceptions import RedisError  # noqa: PLC0415

        self.failures = (RedisError, OSError)
        """What a Redis raises that does not answer, or not well."""
        self._url = url
        self._lock = threading.Lock()
        self._down_until = 0.0
        self._said = False
        self._made: dict[Any, tuple[Any, Any]] = {}
        """Strategy and connections by event loop; None for threads without one."""

    @property
    def asked(self) -> bool:
        return time.monotonic() >= self._down_until

    @property
    def strategy(self) -> Any:
        return self._of(None, _shared_strategy)

    @property
    def astrategy(self) -> Any:
        """The strategy of this event loop: connections belong to a loop."""
        return self._of(asyncio.get_running_loop(), _shared_astrategy)

    def _of(self, loop: Any, make: Callable[[str], tuple[Any, Any]]) -> Any:
        with self._lock:
            for each in [key for key in self._made if key is not None and key.is_closed()]:
                del self._made[each]
            if loop not in self._made:
                self._made[loop] = make(self._url)
            return self._made[loop][0]

    async def aclose(self) -> None:
        with self._lock:
            _, pool = self._made.pop(asyncio.get_running_loop(), (None, None))
        if pool is not None:
            await pool.disconnect()
        self.close()

    def close(self) -> None:
        with self._lock:
            _, pool = self._made.pop(None, (None, None))
        if pool is not None:
            pool.disconnect()

    def failed(self, error: Exception) -> None:
        """Count in memory for a while; the first time, say so."""
        with self._lock:
            self._down_until = time.monotonic() + _AGAIN_S
            said, self._said = self._said, True
        if not said:
            _log.warning(
                "Rate limits: Redis does not answer (%s); each process counts by itself until it does",
                type(error).__name__,
            )


def _shared_strategy(url: str) -> tuple[Any, Any]:
    """Return a strategy and its connections."""
    from limits.storage import RedisStorage  # noqa: PLC0415
    from limits.strategies import SlidingWindowCounterRateLimiter  # noqa: PLC0415
    from redis import ConnectionPool  # noqa: PLC0415

    pool = ConnectionPool.from_url(url, **_OPTIONS)
    return SlidingWindowCounterRateLimiter(RedisStorage(_ANY, connection_pool=pool)), pool


def _shared_astrategy(url: str) -> tuple[Any, Any]:
    """Return a strategy for this event loop and its connections."""
    from limits.aio.storage import RedisStorage  # noqa: PLC0415
    from limits.aio.strategies import SlidingWindowCounterRateLimiter  # noqa: PLC0415
    from redis.asyncio import ConnectionPool  # noqa: PLC0415

    pool: Any = ConnectionPool.from_url(url, **_OPTIONS)
    storage = RedisStorage(f"async+{_ANY}", implementation="redispy", connection_pool=pool)
    return SlidingWindowCounterRateLimiter(storage), pool

"""Count events in a sliding window, in memory or in Redis."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, cast

from agl_core.errors import AglError, ConfigError, MissingExtraError
from agl_core.text import exact_bytes

_log = logging.getLogger(__name__)

_AGAIN_S: Final = 10.0
"""Seconds for which a Redis that failed is not asked again."""
_SWEEP_S: Final = 10.0
"""Seconds between two looks for counts that have ended."""
_MOST_KEYS: Final = 1024
"""Names whose keys are remembered: hashing takes as long as counting."""
_OPTIONS: Final[dict[str, Any]] = {"socket_connect_timeout": 1.0, "socket_timeout": 1.0}
"""Time limits of one request to Redis, in seconds."""
_ANY: Final = "redis://localhost:6379"
"""An address that is not used: the connections have theirs."""
_SCHEMES: Final = ("redis://", "rediss://", "unix://")


_Waiting = tuple[int, "asyncio.Future[bool]"]
"""As how many events it counts, and whether it is allowed."""


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
    """Seconds until a refused event is allowed, if no others come; for an allowed one, until the
    running window ends."""


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

    The window slides and is weighted: the events of the last full window count by the part of it
    that is still in the sliding one. (Unlike an exact window, it forgets those who ask no more.)
    While Redis does not answer, this process counts by itself; that is logged once, and Redis is
    asked again after 10 s. Methods may be called from any thread.
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
        self._rate = _Rate(self._item.amount, self._item.get_expiry())
        self._key = lru_cache(_MOST_KEYS)(self._made_key)
        self._space = space or "agl"
        self._lock = threading.Lock()
        self._queues: dict[tuple[asyncio.AbstractEventLoop, str], list[_Waiting]] = {}
        """By event loop and key, the events that wait for Redis."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._local = _local()
        self._shared = _Shared(redis) if redis else None

    @property
    def limit(self) -> int:
        """Events that a window allows."""
        return self._rate.limit

    def hit(self, *who: str, cost: int = 1) -> RateVerdict:
        """Count an event of the named one, if it is allowed.

        Args:
            who: Whose event it is: a key, an agent, an address. It is hashed before it is stored.
            cost: As how many events it counts.
        """
        key = self._key(who)
        shared = self._shared
        if shared is not None and shared.asked:
            try:
                counts = shared.counts
                allowed = counts.acquire_sliding_window_entry(key, *self._rate, cost)
                window = counts.get_sliding_window(key, self._rate.window_s)
                return self._stated(_Window(*window), cost, allowed=allowed)
            except shared.failures as error:
                shared.failed(error)
        allowed = self._hit_here(key, cost)
        return self._stated_here(key, cost, allowed=allowed)

    async def ahit(self, *who: str, cost: int = 1) -> RateVerdict:
        """Do as `hit` does, without blocking the event loop while Redis is asked."""
        key = self._key(who)
        allowed = await self._allowed(key, cost)
        return await self._averdict(key, cost, allowed=allowed)

    def allows_here(self, *who: str) -> bool:
        """Count an event without Redis, if the limiter has none and the event is allowed."""
        return self._shared is None and self._hit_here(self._key(who), 1)

    async def refusal(self, *who: str, cost: int = 1) -> RateVerdict | None:
        """Count an event if it is allowed, and return None; else return the verdict.

        Redis is asked once for all events of a name that come while it is being asked.
        """
        key = self._key(who)
        if self._shared is None:
            allowed = self._hit_here(key, cost)
        else:
            allowed = await self._gathered(key, cost)
        if allowed:
            return None
        return await self._averdict(key, cost, allowed=False)

    async def wait_s(self, *who: str, cost: int = 1) -> float:
        """Return the seconds until an event is allowed; 0.0 if it is now. It does not count."""
        verdict = await self._averdict(self._key(who), cost, allowed=False)
        return 0.0 if verdict.remaining >= cost else verdict.reset_s

    def close(self) -> None:
        """Close the connections of threads without an event loop. Idempotent."""
        if self._shared is not None:
            self._shared.close()

    async def aclose(self) -> None:
        """Close these and those of this event loop. Idempotent."""
        if self._shared is not None:
            await self._shared.aclose()

    def _made_key(self, who: tuple[str, ...]) -> str:
        text = exact_bytes("\0".join(who))
        return self._item.key_for(self._space, hashlib.sha256(text).hexdigest()[:32])

    async def _allowed(self, key: str, cost: int) -> bool:
        shared = self._shared
        if shared is not None and shared.asked:
            try:
                return await shared.loop_counts.acquire_sliding_window_entry(key, *self._rate, cost)
            except shared.failures as error:
                shared.failed(error)
        return self._hit_here(key, cost)

    async def _gathered(self, key: str, cost: int) -> bool:
        """Do as `_allowed`, together with the other events of the name that wait for Redis."""
        loop = asyncio.get_running_loop()
        place = (loop, key)
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = []
            task = loop.create_task(self._settle(place, queue), name="agl-limits")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        event: asyncio.Future[bool] = loop.create_future()
        queue.append((cost, event))
        return await event

    async def _settle(
        self, place: tuple[asyncio.AbstractEventLoop, str], queue: list[_Waiting]
    ) -> None:
        """Count what waits as one event, until nothing does; if that is refused, one by one."""
        taken: list[_Waiting] = []
        key = place[1]
        try:
            while queue:
                taken[:] = [each for each in queue if not each[1].done()]
                queue.clear()
                total = sum(cost for cost, _ in taken)
                together = len(taken) > 1 and await self._allowed(key, total)
                for cost, event in taken:
                    allowed = together or (not event.done() and await self._allowed(key, cost))
                    if not event.done():
                        event.set_result(allowed)
        finally:
            del self._queues[place]
            for _, event in (*taken, *queue):
                event.cancel()

    def _hit_here(self, key: str, cost: int) -> bool:
        with self._lock:  # else two threads may refuse each other
            return self._local.acquire_sliding_window_entry(key, *self._rate, cost)

    async def _averdict(self, key: str, cost: int, *, allowed: bool) -> RateVerdict:
        shared = self._shared
        if shared is not None and shared.asked:
            try:
                window = await shared.loop_counts.get_sliding_window(key, self._rate.window_s)
                return self._stated(_Window(*window), cost, allowed=allowed)
            except shared.failures as error:
                shared.failed(error)
        return self._stated_here(key, cost, allowed=allowed)

    def _stated_here(self, key: str, cost: int, *, allowed: bool) -> RateVerdict:
        window = _Window(*self._local.get_sliding_window(key, self._rate.window_s))
        return self._stated(window, cost, allowed=allowed)

    def _stated(self, window: _Window, cost: int, *, allowed: bool) -> RateVerdict:
        limit, length_s = self._rate
        return RateVerdict(
            allowed=allowed,
            limit=limit,
            remaining=max(0, limit - window.used(length_s)),
            window_s=length_s,
            reset_s=window.left_s(length_s)
            if allowed
            else window.wait_s(limit, length_s, min(cost, limit)),
        )


class _Rate(NamedTuple):
    limit: int
    window_s: int


class _Window(NamedTuple):
    """The counts of a sliding window, as ``limits`` gives them."""

    previous: int
    """Events of the last full window."""
    previous_s: float
    """Seconds until none of them counts."""
    current: int
    """Events of the window that runs."""
    current_s: float
    """Seconds until none of these counts: a window more than it still lasts."""

    def used(self, length_s: int) -> int:
        """Return how many events count now."""
        return int(self.previous * self.previous_s / length_s) + self.current

    def left_s(self, length_s: int) -> float:
        """Return how long the running window lasts."""
        return max(0.0, self.current_s - length_s)

    def wait_s(self, limit: int, length_s: int, cost: int) -> float:
        """Return the seconds until `cost` more events are allowed, if no others come.

        They are when ``floor(previous * previous_s / length_s) + current + cost <= limit``.
        """
        free = limit - self.current - cost
        if free >= 0:
            return max(0.0, self.previous_s - _decay_s(self.previous, free + 1, length_s))
        rest_s = length_s - _decay_s(self.current, limit - cost + 1, length_s)
        return self.left_s(length_s) + max(0.0, rest_s)


def _decay_s(events: int, below: int, length_s: int) -> float:
    """Return at how many seconds from its end a window's events count as fewer than `below`."""
    return length_s * below / events if events else length_s


def _local() -> Any:
    from limits.storage import MemoryStorage  # noqa: PLC0415

    storage = MemoryStorage()
    storage.timer.cancel()
    storage.timer = cast("Any", _Sweeper(storage))
    return storage


class _Sweeper:
    """Forgets ended counts, in place of the storage's timer.

    The storage asks at each event whether the timer runs, and else starts one, a thread, which is
    100 threads a second and halves the rate of a gateway on a busy machine.
    """

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self._due = time.monotonic() + _SWEEP_S

    def is_alive(self) -> bool:
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _SWEEP_S
            ended = [key for key, at in self._storage.expirations.items() if at <= time.time()]
            for key in ended:
                self._storage.clear(key)
        return True


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
        """Counts and connections by event loop; None for threads without one."""

    @property
    def asked(self) -> bool:
        return time.monotonic() >= self._down_until

    @property
    def counts(self) -> Any:
        return self._of(None, _shared_counts)

    @property
    def loop_counts(self) -> Any:
        """The counts for this event loop: connections belong to a loop."""
        return self._of(asyncio.get_running_loop(), _shared_loop_counts)

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


def _shared_counts(url: str) -> tuple[Any, Any]:
    """Return counts in Redis and their connections."""
    from limits.storage import RedisStorage  # noqa: PLC0415
    from redis import ConnectionPool  # noqa: PLC0415

    pool = cast("Any", ConnectionPool).from_url(url, **_OPTIONS)
    return RedisStorage(_ANY, connection_pool=pool), pool


def _shared_loop_counts(url: str) -> tuple[Any, Any]:
    """Return counts in Redis for this event loop and their connections."""
    from limits.aio.storage import RedisStorage  # noqa: PLC0415
    from redis.asyncio import ConnectionPool  # noqa: PLC0415

    pool = cast("Any", ConnectionPool).from_url(url, **_OPTIONS)
    return RedisStorage(f"async+{_ANY}", implementation="redispy", connection_pool=pool), pool

"""Limits of the requests to models outside this run, which wait for their turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import msgspec

from agl_core.clocks import monotonic
from agl_core.config import RunConfig
from agl_core.errors import EngineError
from agl_limits._limiter import Limiter
from agl_limits._options import EndpointLimits, LimitsOptions, options_of
from agl_limits._use import LimitUse

_log = logging.getLogger(__name__)

_SHORTEST_S: Final = 0.01
_CHARS_PER_TOKEN: Final = 4
_NO_TEXT: Final = "data:"
"""Begins images and files within a text, which are no tokens of text."""

Sleep = Callable[[float], Awaitable[object]]


class _Body(msgspec.Struct):
    """The fields of a request that say how many tokens it takes; of any type."""

    messages: Any = None
    tools: Any = None
    prompt: Any = None
    input: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    n: Any = None


def estimated_tokens(body: bytes, *, answer_tokens: int) -> int:
    """Return the tokens of a request and its answer, one per four characters of its texts.

    Args:
        body: The request; of a malformed one the bytes are counted.
        answer_tokens: Tokens of an answer whose request states no ``max_tokens``.
    """
    try:
        asked = msgspec.json.decode(body, type=_Body)
        sizes = sum(_sizes([asked.messages, asked.tools, asked.prompt, asked.input]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return len(body) // _CHARS_PER_TOKEN + answer_tokens
    most = asked.max_completion_tokens or asked.max_tokens
    answer = most if isinstance(most, int) and most > 0 else answer_tokens
    choices = asked.n if isinstance(asked.n, int) and asked.n > 0 else 1
    return -(-sizes // _CHARS_PER_TOKEN) + answer * choices


def _sizes(value: Any) -> Iterator[int]:
    """Yield the characters of every text; a number is a token id."""
    if isinstance(value, str):
        yield 0 if value.startswith(_NO_TEXT) else len(value)
    elif isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        yield from _sizes([each for name, each in fields.items() if name != "data"])
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _sizes(each)
    elif isinstance(value, int):
        yield _CHARS_PER_TOKEN


class EndpointThrottle:
    """Makes requests to one endpoint wait; implements `agl_endpoints.RequestThrottle`.

    Requests are sent in the order in which they came.
    """

    def __init__(
        self,
        base_url: str,
        limits: EndpointLimits,
        options: LimitsOptions,
        *,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """Create it; nothing is connected yet.

        Args:
            base_url: Address of the endpoint.
            limits: Its limits.
            options: Where to count.
            sleep: Waits for so many seconds.

        Raises:
            ConfigError: the address of Redis is wrong.
            MissingExtraError: a package is not installed.
        """
        self._base_url = base_url
        self._answer_tokens = limits.answer_tokens
        rates = {"requests": limits.requests, "tokens": limits.tokens}
        given = {name: rate for name, rate in rates.items() if rate}
        space = f"{options.prefix}/endpoint"
        self._limiters = {
            name: Limiter(rate, redis=options.address, space=f"{space}/{name}")
            for name, rate in given.items()
        }
        self._sleep = sleep
        self._held_until = 0.0
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )
        stated = ", ".join(f"{name} {rate}" for name, rate in given.items())
        self.use = LimitUse(name=base_url, rate=stated)

    async def turn(self, body: bytes, *, timeout_s: float) -> None:
        """Wait until a request may be sent, and count it; see `agl_endpoints.RequestThrottle`."""
        begun = monotonic()
        costs = {"requests": 1}
        if "tokens" in self._limiters:
            tokens = estimated_tokens(body, answer_tokens=self._answer_tokens)
            costs["tokens"] = min(tokens, self._limiters["tokens"].limit)
        queue = self._queues.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        waits = queue.locked()
        try:
            async with queue:
                while seconds := await self._wait_s(costs):
                    waits = True
                    if monotonic() + seconds - begun > timeout_s:
                        raise self._too_late(seconds, timeout_s)
                    await self._sleep(max(seconds, _SHORTEST_S))
        finally:
            if waits:
                self._waited(monotonic() - begun)
        self.use.allowed += 1

    def hold(self, seconds: float) -> None:
        """Send nothing for so long, as the endpoint asks."""
        self._held_until = max(self._held_until, monotonic() + seconds)

    async def close(self) -> None:
        """Close the connections to Redis; a later request opens them again."""
        for limiter in self._limiters.values():
            await limiter.aclose()

    async def _wait_s(self, costs: dict[str, int]) -> float:
        """Count a request that is allowed now and return 0.0; else return how long it waits."""
        limiters = self._limiters.items()
        waits = [await each.wait_s(self._base_url, cost=costs[name]) for name, each in limiters]
        seconds = max([self._held_until - monotonic(), *waits])
        if seconds > 0:
            return seconds
        for name, each in limiters:
            # Another process may have been faster.
            refused = await each.refusal(self._base_url, cost=costs[name])
            if refused is not None:
                return max(refused.reset_s, _SHORTEST_S)
        return 0.0

    def _waited(self, seconds: float) -> None:
        if not self.use.refused:
            _log.warning(
                "Requests to %s wait for their turn: its limit is %s", self._base_url, self.use.rate
            )
        self.use.refused += 1
        self.use.waited_s += seconds

    def _too_late(self, seconds: float, timeout_s: float) -> EngineError:
        return EngineError(
            f"A request to {self._base_url} would wait another {seconds:.1f} s for its turn, but "
            f"has {timeout_s:.1f} s in all: raise limits.endpoints ({self.use.rate}), run fewer "
            f"attempts at once, or give them more time"
        )


class Throttles:
    """The throttles of the endpoints that a configuration limits, by their base address."""

    def __init__(self, options: LimitsOptions) -> None:
        """Take the options; a throttle is made for the first backend of its endpoint."""
        self._options = options
        self._throttles: dict[str, EndpointThrottle] = {}

    def __call__(self, base_url: str) -> EndpointThrottle | None:
        """Return the throttle of an endpoint; None if it has no limits.

        Raises:
            ConfigError: the address of Redis is wrong.
            MissingExtraError: a package is not installed.
        """
        url = base_url.rstrip("/")
        for pattern, limits in self._options.endpoints.items():
            if url == pattern.rstrip("/") or fnmatchcase(url, pattern):
                if url not in self._throttles:
                    self._throttles[url] = EndpointThrottle(url, limits, self._options)
                return self._throttles[url]
        return None

    @property
    def use(self) -> list[LimitUse]:
        """How much of each limit was used."""
        return [throttle.use for throttle in self._throttles.values()]


def make_throttles(config: RunConfig) -> Throttles:
    """Return the throttles of a configuration with the section ``[limits]``.

    Raises:
        ConfigError: an option is wrong.
    """
    return Throttles(options_of(config))

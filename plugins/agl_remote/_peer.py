"""Call methods of another process of the run, with retries while that process restarts."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
from agl_endpoints import HttpClient, failures, is_address, reason, sendable, untrusted

from agl_core import errors
from agl_core.clocks import monotonic, wall
from agl_core.errors import AglError, ConfigError
from agl_core.serving import asgi
from agl_remote._rpc import (
    HEADER_INSTANCE,
    HEADER_PROTOCOL,
    HEADER_RETRY,
    HEADER_TIME,
    HEADER_WAITED,
    PROTOCOL,
    PULSE_S,
    Refusal,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")

_SILENCE_S: Final = 4 * PULSE_S
"""A server that sends nothing for this long is treated as unavailable."""
_CONNECT_S: Final = 5.0
_IDLE_S: Final = 15.0
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_OK: Final = 200
_BROKEN: Final = 500
"""With a status from this one on, or one of `_BUSY`, the same call may succeed later."""
_BUSY: Final = (408, 429)


class _Answer(msgspec.Struct, Generic[T]):
    ok: T | msgspec.UnsetType = msgspec.UNSET
    error: Refusal | None = None


class Skew:
    """Estimates how far a server's clock is ahead of this process's clock.

    The server read the time `stated` between the local times `asked` and `received`, so its clock
    is ahead by at least ``stated - received`` and at most ``stated - asked``. The estimate is the
    value nearest to 0 in this range: equal clocks are never corrected, even over a slow connection.
    """

    def __init__(self) -> None:
        self.ahead_s = 0.0
        """Estimate from the latest answer; negative if the server's clock is behind."""

    def now(self) -> float:
        return wall()

    def measure(self, stated: str | None, *, asked: float) -> None:
        """Update the estimate from an answer whose head was received just now.

        Args:
            stated: The server's time in Unix seconds, as text; anything else is ignored.
            asked: The result of `now` before the request was sent.
        """
        try:
            server = float(stated or "")
        except ValueError:
            return
        if not math.isfinite(server):
            return
        least, most = server - self.now(), server - asked
        self.ahead_s = max(least, min(most, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a server may be unavailable."""

    seconds: float = 60.0
    """Time from the first failure after the last successful call until calls raise an error."""


class _Away(Exception):  # noqa: N818  an event, after which the call is repeated
    """The server did not answer."""

    def __init__(self, reason: str, *, reached: bool = False) -> None:
        """Store the reason.

        Args:
            reason: The reason, for messages.
            reached: The server had begun to answer.
        """
        super().__init__(reason)
        self.reached = reached


class _Absence:
    """The time since which a server has been unavailable, shared by all calls to it."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._looked = -math.inf
        self.since = math.inf

    def ended(self) -> None:
        self.since = math.inf

    def noticed(self, now: float, *, reached: bool) -> bool:
        """Record a failure; return whether a new absence begins with it."""
        begins = reached or self.since > now or now - self._looked > self._patience_s
        if begins:
            self.since = now
        self._looked = now
        return begins


class Peer:
    """Client of one server of the run.

    A call without an answer is repeated until the server is available again, so every method must
    be idempotent; `RpcRequest.retry` counts the repetitions.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        what: str,
        error: type[AglError],
        patience: Patience | None = None,
    ) -> None:
        """Create a client; calls open the connections.

        Args:
            url: ``http://host:port``.
            key: Bearer token.
            what: ``store`` or ``gateway``, for messages.
            error: Type of the error if the server is unavailable for too long.
            patience: How long the server may be unavailable.

        Raises:
            ConfigError: `url` is not such an address.
        """
        if not is_address(url):
            raise ConfigError(f"{url!r} is no address of a {what}: it looks like http://host:port")
        self.url = url.rstrip("/")
        self.instance = ""
        """Instance of the server that answered last; empty before the first answer."""
        self.skew = Skew()
        self._what = what
        self._error = error
        self._patience_s = (patience or Patience()).seconds
        self._absence = _Absence(self._patience_s)
        self._headers = {
            "Authorization": f"Bearer {key}",
            HEADER_PROTOCOL: str(PROTOCOL),
        }
        # The processes of a run reach each other directly.
        self._client = HttpClient(self.url, idle_s=_IDLE_S, proxies=False)

    async def call(self, method: str, payload: Any, answer: Any) -> Any:
        """Call a method and decode its result as the type `answer`.

        Raises:
            ConfigError: the key is wrong, or the server has another version or is another program.
            AglError: the error that the method raised.
        """
        body = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
        decoder = _decoder(answer)
        begun, since = monotonic(), math.inf
        retry, pause = 0, _FIRST_PAUSE_S
        while True:
            try:
                tried = {HEADER_RETRY: str(retry), HEADER_WAITED: str(monotonic() - begun)}
                raw = await self._send(method, body, tried)
                break
            except _Away as away:
                now = monotonic()
                if self._absence.noticed(now, reached=away.reached):
                    _log.warning("The %s at %s is away (%s)", self._what, self.url, away)
                if since > now or away.reached:
                    since, pause = now, _FIRST_PAUSE_S
                self._still_hopeful(now - min(since, self._absence.since), away)
            await asyncio.sleep(pause)
            retry, pause = retry + 1, min(2 * pause, _LONGEST_PAUSE_S)
        self._absence.ended()
        return self._value(decoder, raw)

    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self._client.close()

    def _still_hopeful(self, gone_s: float, away: _Away) -> None:
        if gone_s >= self._patience_s:
            raise self._error(
                f"The {self._what} at {self.url} has been away for {gone_s:.0f} s ({away}): check "
                f"that it runs and that the address is right"
            ) from away

    def _value(self, decoder: msgspec.json.Decoder[Any], raw: bytes) -> Any:
        try:
            found = decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise self._stranger(str(error)) from error
        if found.error is not None:
            raise self._raised(found.error)
        if found.ok is msgspec.UNSET:
            raise self._stranger("an answer without a value")
        return found.ok

    def _stranger(self, reason: str) -> ConfigError:
        return ConfigError(
            f"What answers at {self.url} is no {self._what} of this version of agl-core ({reason}): "
            f"check the address, and install the same version on both sides"
        )

    def _raised(self, refusal: Refusal) -> AglError:
        kind: type[AglError] = self._error
        named: object = getattr(errors, refusal.type, None)
        if isinstance(named, type) and issubclass(named, AglError):
            kind = named
        # Not `kind(...)`: some types build their message from other arguments.
        error = kind.__new__(kind, refusal.message)
        vars(error).update(refusal.fields)
        return error

    async def _send(self, method: str, body: bytes, tried: Mapping[str, str]) -> bytes:
        from aiohttp import ClientTimeout  # noqa: PLC0415

        timeout = ClientTimeout(sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
        headers = {**self._headers, **tried}
        url = f"{self.url}{asgi.RPC_PREFIX}{method}"
        reached, asked = False, self.skew.now()
        try:
            async with self._client.request(
                "POST", url, data=sendable(body), headers=headers, timeout=timeout
            ) as response:
                reached = response.status == _OK
                self.skew.measure(response.headers.get(HEADER_TIME), asked=asked)
                raw = await response.read()
        except failures() as error:
            if refused := untrusted(error):
                raise ConfigError(f"The {self._what} at {self.url} {refused}") from error
            raise _Away(reason(error), reached=reached) from error
        if response.status != _OK:
            if response.status >= _BROKEN or response.status in _BUSY:
                raise _Away(f"HTTP {response.status}")
            refused = _refusal_message(raw)
            if not refused:
                raise self._stranger(f"HTTP {response.status}")
            raise ConfigError(f"The {self._what} at {self.url} refuses: {refused}")
        if not raw.rstrip():
            raise _Away("it ended", reached=True)
        self.instance = response.headers.get(HEADER_INSTANCE, "")
        return raw


@functools.cache
def _decoder(answer: Any) -> msgspec.json.Decoder[Any]:
    # Type checkers read a subscript of the class as a type expression.
    generic: Any = _Answer
    return msgspec.json.Decoder(generic[answer])


def _refusal_message(raw: bytes) -> str:
    try:
        refusal = msgspec.json.decode(raw, type=_Answer[None]).error
    except msgspec.MsgspecError:
        refusal = None
    return refusal.message if refusal is not None else ""

"""Requests that wait for their turn at an endpoint, and again where it answers "too many"."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import Final, Protocol

from agl_core.clocks import wall

_LATER: Final = (429, 503)
"""Statuses whose ``Retry-After`` a throttled request waits for."""
_UNSTATED_S: Final = 1.0
"""Wait after 429 without ``Retry-After``."""


class RequestThrottle(Protocol):
    """Keeps the requests to one endpoint below its limits."""

    async def turn(self, body: bytes, *, timeout_s: float) -> None:
        """Wait until a request may be sent, and count it. A cancelled wait counts nothing.

        Args:
            body: The request.
            timeout_s: The time that the request has left.

        Raises:
            EngineError: its turn would come later.
        """
        ...

    def hold(self, seconds: float) -> None:
        """Send nothing for so long, as the endpoint asks."""
        ...

    async def close(self) -> None:
        """Close connections; a later request opens them again."""
        ...


THROTTLES: ContextVar[Callable[[str], RequestThrottle | None] | None] = ContextVar(
    "agl_throttles", default=None
)
"""Returns the throttle of an endpoint, by its base address; None if it has no limits.

A backend reads it when it is made.
"""


def throttle_of(base_url: str) -> RequestThrottle | None:
    """Return the throttle of an endpoint in this context; None if it has no limits."""
    find = THROTTLES.get()
    return find(base_url) if find is not None else None


def later_s(status: int, headers: Mapping[str, str]) -> float | None:
    """Return for how long an endpoint asks to wait; None if it does not."""
    if status not in _LATER:
        return None
    stated = retry_after(headers.get("Retry-After", ""))
    return _UNSTATED_S if stated is None and status == _LATER[0] else stated


def retry_after(value: str) -> float | None:
    """Return the seconds in a ``Retry-After`` header, which has a number or a date."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - wall()
        except (ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None

"""How much of a limit was used."""

from __future__ import annotations

import msgspec


class LimitUse(msgspec.Struct, kw_only=True):
    """One limit and what it counted since its process began."""

    name: str
    """``key``, ``agent``, ``agent NAME``, ``policy``, ``address`` or the address of an endpoint."""
    rate: str
    allowed: int = 0
    refused: int = 0
    """Requests that got 429; at an endpoint, those that waited."""
    waited_s: float = 0.0
    """Seconds for which requests to an endpoint waited, summed over them."""

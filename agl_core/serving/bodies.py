"""Bodies of requests, as aiohttp is to send them."""

from __future__ import annotations

from io import BytesIO
from typing import Final

_LARGE_BYTES: Final = 2**18


def sendable(body: bytes) -> bytes | BytesIO:
    """A large body as something that is sent piece by piece, so that other calls go on.

    It can be sent once: ask again to send it again.
    """
    return BytesIO(body) if len(body) > _LARGE_BYTES else body

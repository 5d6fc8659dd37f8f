"""Headers on their way through the gateway, in either direction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from agl_core.serving import asgi
from agl_core.text import system_bytes

_CONTROLS: Final = bytes((*range(9), *range(10, 32), 127))
_BLANKS: Final = bytes.maketrans(_CONTROLS, b" " * len(_CONTROLS))
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def passed_on(headers: asgi.RawHeaders) -> dict[str, str]:
    """A client's headers, as a backend is sent them."""
    return {name: value.decode("latin-1") for raw, value in headers if (name := _travelling(raw))}


@lru_cache(maxsize=1024)
def _travelling(raw: bytes) -> str:
    """The name of a header that passes the gateway, empty for any other."""
    name = raw.decode("latin-1")
    return name if asgi.travels(name) else ""


def answered(headers: Mapping[str, str], ours: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """A backend's headers, as a client is sent them, and `ours`; all named in lower case.

    Names that HTTP does not allow are left out, characters that it does not allow are blanks.
    """
    passed = {name: value for name, value in headers.items() if _passes(name)}
    return [(_encoded(name), _encoded(value)) for name, value in (passed | dict(ours)).items()]


@lru_cache(maxsize=1024)
def _passes(name: str) -> bool:
    return asgi.travels(name) and _NAME.fullmatch(name) is not None


def _encoded(text: str) -> bytes:
    """The bytes that HTTP clients read the text from; a line break would begin another header."""
    return system_bytes(text).translate(_BLANKS)

"""JSON that escapes half a character, which no UTF-8 text can hold."""

from __future__ import annotations

import re
from typing import Final

_REPLACEMENT: Final = rb"\ufffd"
_ESCAPE: Final = re.compile(
    rb"\\(?:(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def mended(data: bytes) -> bytes:
    """The same JSON with U+FFFD in place of each escaped lone surrogate.

    Programs that cut text between the two halves of an emoji and escape what is not ASCII send
    such JSON. Neither msgspec nor tokenizers take it.
    """
    return _ESCAPE.sub(lambda match: _REPLACEMENT if match["lone"] else match[0], data)

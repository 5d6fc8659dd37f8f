r"""Any text as a key in a database.

PostgreSQL's text has no NUL, and UTF-8 no lone surrogates, while ids and names of groups may
contain both. Such characters are replaced so that different texts have different keys, and so that
keys compare as the texts do, by code point:

============== ========================================================
NUL            ``\x01\x01``
``\x01``       ``\x01\x02``
U+D800-U+DFFF  ``\ue000`` and U+0100 to U+08FF
``\ue000``     ``\ue000\u1000``
============== ========================================================

Other text, so nearly every key, is its own key.
"""

from __future__ import annotations

import re
from typing import Final

_ESCAPED: Final = re.compile("[\x00\x01\ud800-\udfff\ue000]")
_ESCAPES: Final = re.compile("\x01([\x01\x02])|\ue000([\u0100-\u08ff\u1000])")
_SURROGATES: Final = 0xD800
_FIRST: Final = 0x100
_PRIVATE: Final = "\ue000"


def key(text: str) -> str:
    """Return the key of a text."""
    return _ESCAPED.sub(_escape, text) if _ESCAPED.search(text) else text


def unkey(found: str) -> str:
    """Return the text of a key."""
    return _ESCAPES.sub(_unescape, found) if "\x01" in found or _PRIVATE in found else found


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character <= "\x01":
        return f"\x01{chr(ord(character) + 1)}"
    if character == _PRIVATE:
        return f"{_PRIVATE}\u1000"
    return f"{_PRIVATE}{chr(ord(character) - _SURROGATES + _FIRST)}"


def _unescape(match: re.Match[str]) -> str:
    if match[1]:
        return chr(ord(match[1]) - 1)
    if match[2] == "\u1000":
        return _PRIVATE
    return chr(ord(match[2]) - _FIRST + _SURROGATES)

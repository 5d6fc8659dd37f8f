"""A vocabulary with many spellings of every text: ids determine the text, text does not the ids.

An id encodes one or two bytes, and every such string has hundreds of ids. Two encodings of equal
texts therefore practically never agree, so a test detects a join by content.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final

__all__ = ["EOS_ID", "decode", "encode", "token_bytes"]

EOS_ID: Final = 2
"""Id that decodes to nothing."""
_ALIASES: Final = 500
_SPECIAL: Final = 16
_ONE_BYTE: Final = 256
_CODES: Final = _ONE_BYTE + 256 * 256


def token_bytes(token_id: int) -> bytes:
    """Return the bytes of one id; empty for special ids.

    Raises:
        ValueError: the id is outside the vocabulary.
    """
    if 0 <= token_id < _SPECIAL:
        return b""
    if not _SPECIAL <= token_id < _SPECIAL + _ALIASES * _CODES:
        raise ValueError(f"Token id {token_id} is not in the vocabulary")
    code = (token_id - _SPECIAL) % _CODES
    if code < _ONE_BYTE:
        return bytes((code,))
    return (code - _ONE_BYTE).to_bytes(2, "big")


def decode(ids: Iterable[int]) -> str:
    """Return the text of ids; bytes that are not UTF-8 become U+FFFD."""
    return b"".join(map(token_bytes, ids)).decode("utf-8", errors="replace")


def encode(text: str, *, random: Random | None) -> list[int]:
    """Return ids that decode to `text`: a random spelling, or the plain one without `random`."""
    data = text.encode()
    if random is None:
        return [_SPECIAL + byte for byte in data]
    ids: list[int] = []
    position = 0
    while position < len(data):
        width = 2 if position + 1 < len(data) and random.random() < 0.5 else 1
        code = int.from_bytes(data[position : position + width], "big")
        code += _ONE_BYTE if width == 2 else 0
        ids.append(_SPECIAL + random.randrange(_ALIASES) * _CODES + code)
        position += width
    return ids

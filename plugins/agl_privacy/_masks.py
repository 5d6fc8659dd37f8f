"""What is left of personal data in a masked text, by kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

_STAR: Final = "*"
_DIGIT: Final = re.compile(r"\d")
_WORD: Final = re.compile(r"[^\W_]+")
_AT: Final = re.compile(r"@|%40")


def email(text: str) -> str:
    """Keep the first letter of the user, the first and last of the domain, and the top domain."""
    *_, at = _AT.finditer(text)
    user, (host, point, top) = text[: at.start()], text[at.end() :].rpartition(".")
    return (
        f"{_first(user)}{at[0]}{_ends(host) if point else _STAR * len(top)}{point and point + top}"
    )


def phone(text: str) -> str:
    """Keep no digit."""
    return _DIGIT.sub(_STAR, text)


def address(text: str) -> str:
    """Keep the first and the last part of an IP address."""
    if ":" in text:
        first, last = text.split(":", maxsplit=1)[0], text.rsplit(":", maxsplit=1)[-1]
        return f"{first or _STAR}:***:{last if last and '.' not in last else _STAR}"
    first, *middle, last = text.split(".")
    return ".".join([first, *(_STAR * len(part) for part in middle), last])


def name(text: str) -> str:
    """Keep the first and the last letter of each word."""
    return _WORD.sub(lambda word: _ends(word[0]), text)


def everything(text: str) -> str:
    """Keep only what is neither a letter nor a digit."""
    return re.sub(r"\w", _STAR, text)


MASKS: Final[Mapping[str, Callable[[str], str]]] = {
    "email": email,
    "phone": phone,
    "address": address,
    "postal": everything,
    "name": name,
}
"""Kind to its mask; other kinds have that of names."""


def _first(text: str) -> str:
    return text[0] + _STAR * (len(text) - 1) if len(text) > 1 else _STAR


def _ends(text: str) -> str:
    """Keep first and last letter; of two letters the first, of one none."""
    if len(text) <= 2:  # noqa: PLR2004
        return _first(text) if text else text
    return f"{text[0]}{_STAR * (len(text) - 2)}{text[-1]}"

"""Recognisers: where a text holds personal data, by kind.

Every pattern takes time that is linear in the length of the text: repetitions are bounded or
possessive, and none begins inside what it matches.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from agl_core.errors import ConfigError, MissingExtraError

Finder = Callable[[str], Iterable[tuple[int, int]]]
"""Returns the ranges of a text that hold personal data, each as start and end."""


class PersonalData(NamedTuple):
    """A range of a text that holds personal data."""

    start: int
    end: int
    kind: str


_MOST: Final = 1_000
"""Candidates of a text that are asked one by one; with more, all count as phone numbers."""
_AFTER: Final = 8
"""Characters after a candidate by which a number differs from a time of day."""
_LOCAL: Final = r"[\w.+\-]"
_AT: Final = re.compile(rf"(?<!{_LOCAL}){_LOCAL}++(?:@|%40)(?=([\w.\-]{{1,255}}+))")
_DOMAIN: Final = re.compile(r"(?:[\w\-]+\.)+(?:xn--[\w\-]+|[^\W\d_]{2,63})")
_GAP: Final = r"[ \t\u00a0\u2009\u202f().\-/\u2010-\u2015]"
_PLUS: Final = re.compile(rf"[+\uff0b]{_GAP}{{0,2}}\d(?:{_GAP}{{0,3}}\d){{6,16}}+(?!\d)")
_NATIONAL: Final = re.compile(rf"(?<![\w+])\(?\d(?:{_GAP}{{0,3}}\d){{5,14}}+(?!\d)")
_IPV4: Final = re.compile(r"(?<![0-9A-Za-z])(?<!\d\.)\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)")
_IPV6: Final = re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f]{0,4}:)[0-9A-Fa-f:.]{2,45}+(?![\w:])")
_FEWEST_HEX: Final = 5
"""Hexadecimal digits of an IPv6 address: ``1::2`` is a slice of a program."""
_WORD: Final = re.compile(r"[^\W_]+")
_BETWEEN: Final = re.compile(r"[\s._'\u2019\-]{1,3}")
_WITHOUT_SPACES: Final = 0x2E80
"""First character of the scripts that write words without spaces between them."""


def emails(text: str) -> Iterator[tuple[int, int]]:
    """Find addresses of e-mail, also with ``%40`` for the ``@``."""
    if "@" not in text and "%40" not in text:
        return
    for match in _AT.finditer(text):
        domain = _DOMAIN.match(match[1])
        start = match.start() + len(match[0]) - len(match[0].lstrip(".+-"))
        if domain and start < match.end() and text[start] not in "@%":
            yield start, match.end() + domain.end()


def network_addresses(text: str) -> Iterator[tuple[int, int]]:
    """Find addresses of IPv4 and IPv6, except those by which a machine names itself."""
    if "." in text:
        for match in _IPV4.finditer(text):
            parts = [int(part) for part in match[0].split(".")]
            if max(parts) <= 255 and parts[0] != 127 and any(parts):  # noqa: PLR2004
                yield match.span()
    if ":" in text:
        for match in _IPV6.finditer(text):
            given = match[0].rstrip(".")
            if sum(char not in ":." for char in given) >= _FEWEST_HEX and _is_ipv6(given):
                yield match.start(), match.start() + len(given)


def _is_ipv6(given: str) -> bool:
    if given.count(":") < 2 or not any(char.isdigit() for char in given):  # noqa: PLR2004
        return False
    try:
        address = ipaddress.IPv6Address(given.removesuffix(":") if given[-2:] != "::" else given)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


def has_phonenumbers() -> bool:
    """Return whether the extra ``privacy`` is installed."""
    return find_spec("phonenumbers") is not None


def phones(regions: Sequence[str]) -> Finder:
    """Return what finds phone numbers.

    Numbers with a plus and the code of a country are found everywhere: without the library
    phonenumbers, any that could be one. National numbers are found for the given regions.

    Args:
        regions: Codes of ISO 3166, such as ``US``.

    Raises:
        ConfigError: a region is unknown.
        MissingExtraError: regions are given, and the library is not installed.
    """
    if not has_phonenumbers():
        if regions:
            raise MissingExtraError("privacy", needs="phonenumbers", extra="privacy")
        return lambda text: (match.span() for match in _PLUS.finditer(text))
    for region in regions:
        if region not in _library().SUPPORTED_REGIONS:
            raise ConfigError(
                f"Configuration: privacy.regions has {region!r}, which is no region of ISO 3166: "
                f"write two capital letters, such as 'US' or 'DE'"
            )

    def find(text: str) -> Iterator[tuple[int, int]]:
        if "+" in text or "\uff0b" in text:
            yield from _asked(text, _PLUS, [None])
        if regions:
            yield from _asked(text, _NATIONAL, regions)

    return find


def _library() -> Any:
    return import_module("phonenumbers")  # when there is a number: it takes time to import


def _asked(
    text: str, pattern: re.Pattern[str], regions: Sequence[str | None]
) -> Iterator[tuple[int, int]]:
    candidates = [match.span() for match in pattern.finditer(text)]
    if len(candidates) > _MOST:
        yield from candidates
        return
    for start, end in candidates:
        library = _library()
        given = text[start : end + _AFTER]
        for region in regions:
            # A plus alone says that a phone number is meant; with a point it may be a number.
            sure = region is not None or "." in text[start:end]
            leniency = library.Leniency.VALID if sure else library.Leniency.POSSIBLE
            for match in library.PhoneNumberMatcher(given, region, leniency=leniency):
                if match.start < end - start:
                    yield start + match.start, start + match.end


def named(names: Iterable[str]) -> Finder:
    """Return what finds names of a list, in any case, with spaces, hyphens or points inside.

    Raises:
        ConfigError: a name has no word of two letters.
    """
    known: dict[str, list[tuple[str, ...]]] = {}
    inside: list[str] = []
    for name in names:
        words = tuple(word.casefold() for word in _WORD.findall(name))
        if any(ord(char) >= _WITHOUT_SPACES for word in words for char in word):
            inside.append(name.strip())
        elif not any(len(word) > 1 for word in words):
            raise ConfigError(
                f"Configuration: privacy.names has {name!r:.80}, which is no name: write at least "
                f"two letters"
            )
        else:
            known.setdefault(words[0], []).append(words)
    for several in known.values():
        several.sort(key=len, reverse=True)
    literal = re.compile("|".join(map(re.escape, sorted(inside, key=len, reverse=True))))

    def find(text: str) -> Iterator[tuple[int, int]]:
        if inside:
            yield from (match.span() for match in literal.finditer(text))
        if known:
            yield from _listed(text, known)

    return find


def _listed(text: str, known: dict[str, list[tuple[str, ...]]]) -> Iterator[tuple[int, int]]:
    for match in _WORD.finditer(text):
        for words in known.get(match[0].casefold(), ()):
            end = _end_of(text, match.end(), words[1:])
            if end is not None:
                yield match.start(), end
                break


def _end_of(text: str, end: int, words: Sequence[str]) -> int | None:
    """Return where the words end that follow; None if others follow."""
    for word in words:
        gap = _BETWEEN.match(text, end)
        following = _WORD.match(text, gap.end()) if gap else None
        if following is None or following[0].casefold() != word:
            return None
        end = following.end()
    return end

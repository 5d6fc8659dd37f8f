"""Recogniser of postal addresses of the US, the United Kingdom, Germany and France.

An address is a street with a house number, then a postcode with its city, close together and in
the order of the country. Streets and cities begin with capital letters. A street or a postcode
alone is none.

Postcodes are looked for first: only the characters before or around one are read for a street, so
that the time is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_BEFORE: Final = 160
"""Characters before a postcode in which its street begins."""
_LETTER: Final = r"[^\W\d_]"
_FIRST: Final = r"[A-Z\u00c0-\u00d6\u00d8-\u00de\u0152]"
_CAPITAL: Final = rf"{_FIRST}(?:{_LETTER}|['\u2019.\-](?={_LETTER})){{0,30}}+"
"""A word that begins with a capital letter."""
_CITY: Final = rf"{_CAPITAL}(?: (?:(?:am|an der|im|ob der) )?{_CAPITAL}){{0,2}}"
_GAP: Final = r"(?:[ \t]*+(?:[,;|\u00b7]|\r?\n|\\n|[\-\u2013](?=[ \t]))[ \t]*+\r?\n?|[ \t]++)"
"""Between street, city and postcode: a comma, another line, or a space."""
_NO_NUMBER: Final = r"(?<![\w.,:$€£#+/\-])"
"""Before a house number: it is no part of another number, of a price or of a name."""
_NO_CODE: Final = r"(?:(?<![\w.,$€£\-])|(?<=\\n))"
"""Before a postcode; it may follow an escaped end of a line."""

_STATES: Final = (
    "A[KLRZ]|C[AOT]|D[CE]|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|O[HKR]|P[AR]|RI|S[CD]|"
    "T[NX]|UT|V[AT]|W[AIVY]"
)
_US_STREETS: Final = (
    "Alley|Aly|Avenue|Ave?|Boulevard|Blvd|Broadway|Circle|Cir|Court|Ct|Drive|Dr|Freeway|Fwy|"
    "Highway|Hwy|Lane|Ln|Loop|Parkway|Pkwy|Place|Pl|Plaza|Road|Rd|Square|Sq|Street|St|Terrace|Ter|"
    "Trail|Trl|Way"
)
_UK_STREETS: Final = (
    "Avenue|Ave|Close|Court|Crescent|Cres|Drive|Gardens|Gate|Green|Grove|Hill|Lane|Mews|Parade|"
    "Park|Place|Quay|Rise|Road|Rd|Row|Square|Street|St|Terrace|View|Walk|Way|Yard"
)
_POINT: Final = r"(?:[NSEW]|N[EW]|S[EW]|North|South|East|West)\.?"
_UNIT: Final = (
    r"(?:,? (?:#|(?:Apartment|Apt|Building|Bldg|Flat|Floor|Room|Suite|Ste|Unit)\.? #?)"
    r"[A-Z0-9][A-Z0-9\-]{0,7})"
)
_MONEY: Final = r"(?!(?:Euro|EUR|Dollar|Pfund|Franken|Mark|Francs?|Stück|Einwohner|Menschen)\b)"


class _Country(NamedTuple):
    postcode: re.Pattern[str]
    """Finds postcodes, with what stands around them in every address."""
    before: re.Pattern[str]
    """Matches the text from a house number to the postcode."""


_US: Final = _Country(
    re.compile(rf"(?<!\w)(?:{_STATES})(?:,[ \t]?|[ \t]{{1,3}})\d{{5}}(?:-\d{{4}})?+(?![\w\-])"),
    re.compile(
        rf"{_NO_NUMBER}\d{{1,6}}(?:-\d{{1,4}}|[A-Z])?+ (?:1/2 )?(?:{_POINT} )?"
        rf"(?:(?:{_CAPITAL}|\d{{1,3}}(?:st|nd|rd|th))\.? ){{0,4}}(?i:{_US_STREETS})\b\.?"
        rf"(?: {_POINT}(?!\w))?{_UNIT}?{_GAP}{_CITY}(?:,[ \t]*+|[ \t]++)\Z"
    ),
)
_UK: Final = _Country(
    re.compile(r"(?<!\w)[A-Z]{1,2}\d[A-Z\d]?+[ \u00a0]\d[A-Z]{2}(?!\w)"),
    re.compile(
        rf"{_NO_NUMBER}(?:Flat \d{{1,4}}[A-Z]?,? )?\d{{1,4}}(?:-\d{{1,4}})?+[A-Za-z]?,? "
        rf"(?:{_CAPITAL} ){{1,4}}(?i:{_UK_STREETS})\b(?:{_GAP}{_CITY}){{0,3}}{_GAP}\Z"
    ),
)
_DE: Final = _Country(
    re.compile(rf"{_NO_CODE}(?:D-)?\d{{5}} {_MONEY}{_CITY}"),
    re.compile(
        rf"(?<!\w)(?:(?:{_FIRST}{_LETTER}{{0,30}}-){{0,3}}{_FIRST}{_LETTER}{{1,30}}?"
        r"(?:straße|strasse|str\.|weg|platz|allee|gasse|ring|damm|ufer|chaussee|steig|pfad|markt)|"
        rf"(?:{_FIRST}{_LETTER}{{0,30}}[ \-]){{1,3}}"
        r"(?:Straße|Strasse|Str\.|Weg|Platz|Allee|Gasse|Ring|Damm|Ufer|Chaussee|Steig|Pfad|Markt)|"
        r"Unter den Linden)"
        rf" ?\d{{1,4}}(?: ?[a-z](?!\w))?(?: ?[\-\u2013/] ?\d{{1,4}}(?: ?[a-z](?!\w))?)?{_GAP}\Z"
    ),
)
_FR: Final = _Country(
    re.compile(rf"{_NO_CODE}(?:F-)?\d{{5}} {_MONEY}{_CITY}"),
    re.compile(
        rf"{_NO_NUMBER}\d{{1,4}}(?: ?(?:bis|ter|quater|[A-D])(?!\w))?,? "
        r"(?:[Rr]ue|[Aa]venue|[Aa]v\.|[Bb]oulevard|[Bb]d\.?|[Pp]lace|[Cc]hemin|[Aa]llées?|"
        r"[Ii]mpasse|[Qq]uai|[Rr]oute|[Cc]ours|[Ss]quare|[Pp]assage|[Ss]entier|[Ff]aubourg)"
        rf"(?: (?:de|du|des|la|le|les|d['\u2019]|l['\u2019]|\d{{1,2}}|{_CAPITAL})+?){{1,8}}{_GAP}\Z"
    ),
)
_COUNTRIES: Final = (_US, _UK, _DE, _FR)
_ANY: Final = re.compile(r"\d[A-Z]{2}|\d{5}")
"""The end of every postcode."""


def postal_addresses(text: str) -> Iterator[tuple[int, int]]:
    """Find postal addresses, from the house number or the street to the postcode and its city."""
    if _ANY.search(text) is None:
        return
    for country in _COUNTRIES:
        for code in country.postcode.finditer(text):
            start = max(0, code.start() - _BEFORE)
            street = country.before.search(text, start, code.start())
            if street is not None:
                yield street.start(), code.end()

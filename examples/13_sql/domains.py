"""The words of the data: thirty domains of two tables each, ten of them held out.

Every row has a name, which the other table refers to; a table's words are its own name, a column of
text and its columns of numbers. Domains share words; no two share a table.
"""

from __future__ import annotations

from typing import NamedTuple

VALUES = {
    "color": "blue green pink white",
    "region": "north east west inland",
    "class": "basic luxury premium",
    "shape": "oval cube ring cone",
    "state": "open closed idle broken",
    "kind": "public private hybrid",
    "size": "large little huge",
    "origin": "china peru egypt kenya",
    "metal": "gold iron zinc copper",
    "flavor": "lemon ginger plain apple",
    "wood": "oak pine walnut birch",
    "rank": "junior expert chief",
    "genre": "jazz rock opera folk",
    "fuel": "gas oil coal",
}
"""Columns of text, and the values of each."""
NUMBERS = (
    "price weight age height speed length score power width depth volume cost pages rooms seats "
    "wage points hours area rating stock goals floors budget"
)
"""Columns of numbers."""
NAMES = (
    "ada bea cal dan eli fay gus hal ida jon kim leo mia nia ola pam quin rex sue tom uma val wes "
    "zoe"
)
TRAINED = {
    "harbor": ("ship color speed length", "sailor rank age wage"),
    "school": ("course class hours", "pupil region age score"),
    "zoo": ("cage shape width height", "animal origin weight age"),
    "music": ("band genre rating", "song state length points"),
    "library": ("shelf wood height", "book genre pages price"),
    "hospital": ("ward kind rooms cost", "nurse rank wage"),
    "farm": ("field region area", "crop color stock price"),
    "airport": ("airline class budget", "flight origin hours seats"),
    "museum": ("hall size area", "statue metal height weight"),
    "cinema": ("studio region budget", "film genre length rating"),
    "bakery": ("oven fuel volume", "cake flavor weight price"),
    "bank": ("branch region floors", "account state budget points"),
    "football": ("team color points", "player rank goals age"),
    "hotel": ("hotel class floors rating", "suite size price area"),
    "garden": ("park kind area", "tree wood height age"),
    "railway": ("station state floors", "train fuel speed seats"),
    "town": ("city size budget", "street shape length width"),
    "court": ("judge rank age", "trial state hours cost"),
    "post": ("office kind rooms", "parcel size weight cost"),
    "kitchen": ("chef rank rating", "soup flavor price volume"),
}
"""Each domain's first table and second table; a row of the second refers to one of the first."""
HELD_OUT = {
    "space": ("planet color area", "moon shape width weight"),
    "theater": ("stage size seats", "actor rank age wage"),
    "pets": ("owner region age budget", "pet color weight"),
    "wine": ("winery origin area", "bottle flavor price volume"),
    "mine": ("mine metal depth", "miner rank wage hours"),
    "sport": ("gym class rooms price", "coach state age"),
    "science": ("lab kind budget", "probe metal length power"),
    "garage": ("garage region floors", "car fuel speed price"),
    "river": ("river size length depth", "bridge wood width"),
    "games": ("league genre points", "match state score hours"),
}


class Table(NamedTuple):
    """Words of a table."""

    name: str
    text: str
    numbers: tuple[str, ...]


class Schema(NamedTuple):
    """Two tables; a column of the second has the first one's name and holds names of its rows."""

    first: Table
    second: Table


def table(words: str) -> Table:
    """Read a table of the dictionaries above."""
    name, text, *numbers = words.split()
    return Table(name, text, tuple(numbers))


def schemas(domains: dict[str, tuple[str, str]]) -> dict[str, Schema]:
    """Read domains of the dictionaries above."""
    return {name: Schema(table(first), table(second)) for name, (first, second) in domains.items()}

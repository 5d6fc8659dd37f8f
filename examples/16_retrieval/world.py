"""A generated world of people, places and works, and questions about it that take one or two hops.

Names are pairs of words. Of the world of `SEED`, one third of the entities is held out: training
questions mention none of them, and no fact links one to the others.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

Split = Literal["train", "held_out"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SEED = 16
"""Seed of the world that the index holds."""

FIRST = _words(
    "Mara Tomas Ilse Bruno Petra Oskar Lena Viktor Nora Felix Greta Hugo Alma Rolf Vera Anton "
    "Clara Emil Frida Gustav Helga Ivo Jana Karl"
)
LAST = _words(
    "Quill Tenn Brandt Holm Varga Sorel Lindt Marek Oster Pohl Reyes Stroud Tamm Ulrich Vance "
    "Wynn Zeller Adler Borg Crane Dahl Ekman Frost Grahn"
)
PLACE_FIRST = _words(
    "Stone North Green High Long Old White Deep Fair Cold Bright Grey Upper Lower West East"
)
PLACE_LAST = _words(
    "Bay Hill Ford Haven Field Bridge Cross Marsh Point Cliff Moor Vale Wood Port Mill Gate"
)
TITLE_FIRST = _words(
    "Silent Broken Golden Hidden Burning Distant Empty Final Gentle Hollow Iron Lost Midnight "
    "Narrow Open Patient Quiet Restless Scarlet Tender Velvet Wandering Winter Summer"
)
TITLE_LAST = _words(
    "Harbor Mirror Garden Letter River Crown Lantern Orchard Window Shadow Bell Road Island Dream "
    "Tower Feather Stranger Voyage Storm Promise Song Ladder Circle Candle"
)
COUNTRIES = _words(
    "Norland Estoria Veland Marenia Tolvia Ostrava Kelland Brenia Sorvia Altland Dravia Fenland"
)
MAKERS: Mapping[str, tuple[str, str]] = {
    "novel": ("wrote", "author"),
    "symphony": ("composed", "composer"),
    "painting": ("painted", "painter"),
    "film": ("directed", "director"),
}
"""Kind of a work to the verb of its questions and the title of who made it."""

PEOPLE, PLACES, WORKS = 210, 120, 270
_HELD_OUT_SHARE = 3
"""One pair of words in three is a name of a held-out entity."""


@dataclass(frozen=True, slots=True)
class World:
    """Facts, each from one entity to another."""

    born: Mapping[str, str]
    """Person to place."""
    country: Mapping[str, str]
    """Place to country."""
    maker: Mapping[str, str]
    """Work to person."""
    kind: Mapping[str, str]
    """Work to one of `MAKERS`."""

    def chunks(self) -> list[str]:
        """Return the texts of the index, one fact each."""
        texts = [f"{person} was born in {place}." for person, place in self.born.items()]
        texts += [f"{place} is a town in {country}." for place, country in self.country.items()]
        texts += [
            f"{work} is a {self.kind[work]} by {person}." for work, person in self.maker.items()
        ]
        return texts


@dataclass(frozen=True, slots=True)
class Hop:
    """One search on the way to an answer."""

    entity: str
    """What the fact is about."""
    word: str
    """The word of the relation, which a good query adds to the entity."""
    answer: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the searches that lead to its answer, and the answer."""

    text: str
    hops: tuple[Hop, ...]

    @property
    def answer(self) -> str:
        """The answer of the last hop."""
        return self.hops[-1].answer


def draw_world(
    chance: random.Random,
    splits: Sequence[Split] = ("train", "held_out"),
    *,
    people: int = PEOPLE,
    places: int = PLACES,
    works: int = WORKS,
) -> World:
    """Draw a world with names of these splits; facts stay within a split."""
    world = World({}, {}, {}, {})
    for split in splits:
        share = 1 if len(splits) == 1 else _HELD_OUT_SHARE
        part = share - 1 if share > 1 and split == "train" else 1

        def some(
            first: Sequence[str], last: Sequence[str], count: int, *, of: Split = split
        ) -> list[str]:
            return chance.sample(names(first, last, of), count)

        towns = some(PLACE_FIRST, PLACE_LAST, places * part // share)
        persons = some(FIRST, LAST, people * part // share)
        titles = some(TITLE_FIRST, TITLE_LAST, works * part // share)
        world.country.update({town: chance.choice(COUNTRIES) for town in towns})
        world.born.update({person: chance.choice(towns) for person in persons})
        world.maker.update({f"The {title}": chance.choice(persons) for title in titles})
        world.kind.update({f"The {title}": chance.choice([*MAKERS]) for title in titles})
    return world


def names(first: Sequence[str], last: Sequence[str], split: Split) -> list[str]:
    """Return the pairs of words that name entities of a split."""
    pairs = [f"{one} {other}" for one, other in product(first, last)]
    random.Random(" ".join(first)).shuffle(pairs)
    held_out = len(pairs) // _HELD_OUT_SHARE
    return pairs[:held_out] if split == "held_out" else pairs[held_out:]


def questions(world: World, split: Split) -> list[Question]:
    """Return every question about the entities of a split, in the world's order."""
    held = {
        *names(FIRST, LAST, split),
        *names(PLACE_FIRST, PLACE_LAST, split),
        *(f"The {title}" for title in names(TITLE_FIRST, TITLE_LAST, split)),
    }
    return [each for each in _questions(world) if each.hops[0].entity in held]


def _questions(world: World) -> Iterator[Question]:
    for place, country in world.country.items():
        yield Question(f"In which country is {place}?", (Hop(place, "town", country),))
    for person, place in world.born.items():
        born = Hop(person, "born", place)
        land = Hop(place, "town", world.country[place])
        yield Question(f"Where was {person} born?", (born,))
        yield Question(f"In which country was {person} born?", (born, land))
    for work, person in world.maker.items():
        verb, title = MAKERS[world.kind[work]]
        made = Hop(work, world.kind[work], person)
        yield Question(f"Who {verb} {work}?", (made,))
        born = Hop(person, "born", world.born[person])
        yield Question(f"Where was the {title} of {work} born?", (made, born))

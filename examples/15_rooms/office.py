"""The office: seven meeting rooms, their bookings, the availability tool, and which room is best."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "ten")
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday")
TIMES = ("nine", "eleven", "noon", "one", "teatime", "dusk")
NEEDS = ("screen", "phone", "whiteboard")
SEATS = {"amber": 2, "birch": 3, "cedar": 4, "dune": 5, "elm": 6, "fern": 8, "grove": 10}
"""The rooms with their seats, the smallest first."""
HAS = {
    "amber": ("phone", "whiteboard"),
    "birch": ("screen", "phone"),
    "cedar": ("whiteboard", "screen"),
    "dune": ("phone", "screen"),
    "elm": ("screen", "whiteboard"),
    "fern": ("whiteboard", "phone"),
    "grove": ("screen", "phone", "whiteboard"),
}
NONE, NO_ROOMS = "none", "no rooms"
"""The answer if no room fits, and what the tool says then."""
_BOOKED = 0.55
"""Share of the hours at which a room is taken."""
_SIZES = {name: number for number, name in zip((2, 3, 4, 5, 6, 7, 8, 10), NUMBERS, strict=True)}


def _bookings() -> frozenset[tuple[str, str, str]]:
    chance = random.Random("bookings")
    hours = [(room, day, time) for room in SEATS for day in DAYS for time in TIMES]
    return frozenset(hour for hour in hours if chance.random() < _BOOKED)


BOOKED = _bookings()
"""Room, day and time of the hours that are taken."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A request for a room."""

    day: str
    time: str
    people: str
    needs: str

    @property
    def fitting(self) -> list[str]:
        """The rooms that are free, large enough and equipped; the smallest first."""
        return find_rooms(day=self.day, time=self.time, people=self.people, needs=self.needs)

    @property
    def best(self) -> str:
        """The smallest room that fits; `NONE` without any."""
        return next(iter(self.fitting), NONE)


def find_rooms(
    *, day: str, time: str | None = None, people: str | None = None, needs: str | None = None
) -> list[str]:
    """Return the rooms that satisfy the arguments that are given, the smallest first.

    Raises:
        ValueError: a value is unknown.
    """
    known = {"day": DAYS, "time": TIMES, "people": NUMBERS, "needs": NEEDS}
    given = {"day": day, "time": time, "people": people, "needs": needs}
    for name, value in given.items():
        if value not in (None, *known[name]):
            raise ValueError(f"unknown {name} {value!r}: one of {', '.join(known[name])}")
    return [
        room
        for room, seats in SEATS.items()
        if (time is None or (room, day, time) not in BOOKED)
        and (people is None or seats >= _SIZES[people])
        and (needs is None or needs in HAS[room])
    ]


def availability(arguments: Mapping[str, Any]) -> str:
    """Return the tool's result for the arguments of a call, right or wrong."""
    wrong = sorted({*arguments} - {"day", "time", "people", "needs"})
    if wrong:
        return f"error: unknown argument {wrong[0]!r}"
    if "day" not in arguments:
        return "error: the day is missing"
    try:
        found = find_rooms(**arguments)
    except ValueError as error:
        return f"error: {error}"
    return ", ".join(found) or NO_ROOMS


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "find_rooms",
        "description": "List the rooms that satisfy what is given, the smallest first.",
        "parameters": {
            "type": "object",
            "properties": {
                "day": {"type": "string", "enum": [*DAYS]},
                "time": {"type": "string", "enum": [*TIMES]},
                "people": {"type": "string", "enum": [*NUMBERS]},
                "needs": {"type": "string", "enum": [*NEEDS]},
            },
            "required": ["day"],
        },
    },
}
"""The availability tool as models see it."""


def grade(meeting: Meeting, answer: str) -> tuple[float, str]:
    """Grade an answer and say why: 1 for the best room, 0.5 for another that fits, else 0."""
    answer, best = answer.strip().lower(), meeting.best
    if answer == best:
        return 1.0, ""
    if answer == NONE:
        return 0.0, f"{best} fits, but the answer was none"
    if answer not in SEATS:
        return 0.0, f"the answer {answer[:40]!r} is not the name of a room"
    if best == NONE:
        return 0.0, f"no room fits, but the answer was {answer}"
    if answer in meeting.fitting:
        return 0.5, f"{answer} fits, but {best} is smaller"
    return 0.0, "; ".join(_misfits(meeting, answer))


def _misfits(meeting: Meeting, room: str) -> list[str]:
    """Return why a room does not fit."""
    found: list[str] = []
    if (room, meeting.day, meeting.time) in BOOKED:
        found.append(f"{room} is booked on {meeting.day} at {meeting.time}")
    if SEATS[room] < _SIZES[meeting.people]:
        found.append(f"{room} has too few seats for {meeting.people} people")
    if meeting.needs not in HAS[room]:
        found.append(f"{room} has no {meeting.needs}")
    return found

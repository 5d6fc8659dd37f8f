"""A game of two players in which the one who takes the last stick wins.

The program uses only the OpenAI client and contains no training code. The environment variables
``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` set its endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache

from openai import OpenAI

MODEL = "gpt-4o-mini"
PLAYERS = ("left", "right")
MOST = 3
"""Most sticks that a player takes at a time."""
LARGEST = 12
"""Most sticks on the table at the start."""
RULES = "Take 1, 2 or 3 sticks. Who takes the last stick wins. Answer with a number."
NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve"),
)


@dataclass(frozen=True)
class Game:
    """A game that has ended."""

    winner: str
    moves: tuple[tuple[str, str], ...]
    """Players and their answers."""
    legal: bool
    """False if the loser's last answer was not a move."""


Seat = Callable[[str], AbstractContextManager[object]]
"""Entered around each turn of a player, with the player's name."""


def prompt(sticks: int) -> list[dict[str, str]]:
    """Return what a player reads."""
    left = f"There are {NUMBERS[sticks]} sticks."
    return [{"role": "system", "content": RULES}, {"role": "user", "content": left}]


def play(sticks: int, *, first: str, seat: Seat = nullcontext) -> Game:
    """Play one game; an answer that is not a move loses."""
    player, moves = first, list[tuple[str, str]]()
    while True:
        with seat(player):
            answer = ask(sticks)
        moves.append((player, answer))
        other = PLAYERS[1 - PLAYERS.index(player)]
        taken = int(answer) if answer in ("1", "2", "3") else 0
        if not 0 < taken <= sticks:
            return Game(winner=other, moves=tuple(moves), legal=False)
        sticks -= taken
        if not sticks:
            return Game(winner=player, moves=tuple(moves), legal=True)
        player = other


def ask(sticks: int) -> str:
    """Ask the model for a move."""
    reply = client().chat.completions.create(
        model=MODEL, messages=prompt(sticks), max_completion_tokens=4
    )
    return (reply.choices[0].message.content or "").strip()


@cache
def client() -> OpenAI:
    """Create the client at first use; it reads address and key from the environment."""
    return OpenAI()

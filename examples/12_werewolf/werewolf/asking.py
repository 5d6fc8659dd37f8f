"""The interface between the game and its players."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from werewolf.forms import Form
from werewolf.rules import Role


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that a seat has seen."""

    round: int
    kind: str
    """``said``, ``died``, ``votes``, ``note`` …"""
    seat: int | None
    """Who spoke, died, or is meant."""
    text: str
    """In Chinese."""


@dataclass(frozen=True, slots=True)
class Request:
    """One question to one seat, with all that the seat may know."""

    seat: int
    role: Role
    mates: tuple[int, ...]
    """The wolves, for a wolf; empty for everybody else."""
    round: int
    phase: str
    question: str
    form: Form
    options: tuple[int, ...]
    living: tuple[int, ...]
    sheriff: int | None
    lines: tuple[Line, ...]
    problem: str = ""
    """What was wrong with this seat's previous answer to this question."""


class Player(Protocol):
    """What plays one seat."""

    async def answer(self, request: Request) -> str:
        """Return the answer as text; any text is allowed, an unclear one is asked for again."""
        ...


class Watcher:
    """Callbacks of a game; each does nothing unless it is overridden."""

    def on_deal(self, roles: dict[int, Role]) -> None:
        """Receive the cards before the first question."""

    def on_answer(self, request: Request, text: str, problem: str) -> None:
        """Receive an answer as it was given, and what is wrong with it, or an empty text."""

    def on_end(self, winner: str | None) -> None:
        """Receive the camp that has won, ``wolves`` or ``good``, or None."""

"""The table: who lives, what each seat knows, and the log of the game."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from werewolf.asking import Line, Player, Request, Watcher
from werewolf.forms import Answer, Form, UnclearAnswerError, declined, read
from werewolf.rules import (
    CHINESE,
    DECK,
    GODS,
    MAX_TRIES,
    SEATS,
    WOLVES,
    Role,
)

Seating = Callable[[int, Role], Player]
"""Returns the player of a seat that has been dealt a card."""


class Table:
    """State of one game. The seed decides cards, ties and the order of speeches."""

    def __init__(self, seating: Seating, seed: int | str, watcher: Watcher | None = None) -> None:
        """Deal the cards and seat the players."""
        self.watcher = watcher or Watcher()
        self.chance = random.Random(f"werewolf {seed}")
        cards = list(DECK)
        self.chance.shuffle(cards)
        self.roles = dict(zip(SEATS, cards, strict=True))
        self.watcher.on_deal(dict(self.roles))
        self.players = {seat: seating(seat, role) for seat, role in self.roles.items()}
        self.living = list(SEATS)
        self.round = 0
        self.sheriff: int | None = None
        self.election_due = True
        self.explosions: set[int] = set()
        """Rounds in which a wolf exploded."""
        self.tonight: dict[int, str] = {}
        """Deaths of the night that are not announced yet, with their causes."""
        self.guarded: int | None = None
        self.antidote = True
        self.poison = True
        self.log: list[dict[str, Any]] = []
        self._lines: dict[int, list[Line]] = {seat: [] for seat in SEATS}
        self.write("deal", seed=seed, roles={str(s): r.value for s, r in self.roles.items()})

    def write(self, event: str, **fields: Any) -> None:
        """Add an entry to the log."""
        self.log.append({"event": event, "round": self.round, **fields})

    def of(self, *roles: Role) -> list[int]:
        """Return the living seats with one of these cards."""
        return [seat for seat in self.living if self.roles[seat] in roles]

    @property
    def wolves(self) -> list[int]:
        """The living wolves."""
        return self.of(*WOLVES)

    def winner(self) -> str | None:
        """Return the camp that has won, if one has."""
        if not self.wolves:
            return "good"
        if not self.of(*GODS) or not self.of(Role.VILLAGER):
            return "wolves"
        return None

    def draw(self, what: str, among: Sequence[int | None]) -> int | None:
        """Draw one of the given by chance, and log it; of one alone nothing is drawn."""
        if len(among) == 1:
            return among[0]
        drawn = self.chance.choice(among)
        self.write("draw", what=what, among=list(among), drawn=drawn)
        return drawn

    def show(
        self, text: str, kind: str, seat: int | None = None, to: Iterable[int] = SEATS
    ) -> None:
        """Add a line to what some seats know; without ``to``, to what all know."""
        for each in to:
            self._lines[each].append(Line(self.round, kind, seat, text))

    async def ask(
        self,
        seat: int,
        phase: str,
        question: str,
        form: Form,
        options: Sequence[int] = (),
    ) -> Answer:
        """Ask one seat and log its decision."""
        return (await self.ask_all([seat], phase, question, form, options))[seat]

    async def ask_all(
        self,
        seats: Sequence[int],
        phase: str,
        question: str,
        form: Form,
        options: Sequence[int] = (),
    ) -> dict[int, Answer]:
        """Ask some seats at the same time and log their decisions by seat."""
        requests = [self._request(seat, phase, question, form, options) for seat in seats]
        tasks = [asyncio.ensure_future(self._answer(request)) for request in requests]
        try:
            given = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        for seat, (answer, tries) in zip(seats, given, strict=True):
            self.write(
                "choice",
                phase=phase,
                seat=seat,
                options=list(options),
                choice=answer.choice,
                said=answer.said,
                unclear=tries,
            )
        return dict(zip(seats, (answer for answer, _ in given), strict=True))

    async def speak(self, seat: int, phase: str, question: str) -> None:
        """Let a seat speak to all."""
        answer = await self.ask(seat, phase, question, Form.SPEECH)
        self.show(answer.said or "（沉默）", "said", seat)

    def _request(
        self, seat: int, phase: str, question: str, form: Form, options: Sequence[int]
    ) -> Request:
        role = self.roles[seat]
        mates = tuple(s for s in SEATS if self.roles[s] in WOLVES) if role in WOLVES else ()
        return Request(
            seat=seat,
            role=role,
            mates=mates,
            round=self.round,
            phase=phase,
            question=question,
            form=form,
            options=tuple(options),
            living=tuple(self.living),
            sheriff=self.sheriff,
            lines=tuple(self._lines[seat]),
        )

    async def _answer(self, request: Request) -> tuple[Answer, int]:
        """Return the answer and the number of unclear ones before it."""
        asked = request
        for unclear in range(MAX_TRIES):
            text = await self.players[request.seat].answer(asked)
            try:
                answer = read(text, request.form, request.options)
            except UnclearAnswerError as error:
                self.watcher.on_answer(asked, text, str(error))
                asked = _again(request, str(error))
                continue
            self.watcher.on_answer(asked, text, "")
            return answer, unclear
        return declined(request.form), MAX_TRIES


def _again(request: Request, problem: str) -> Request:
    fields = {name: getattr(request, name) for name in Request.__slots__}
    return Request(**{**fields, "problem": problem})


def named(seats: Iterable[int]) -> str:
    """Return seats in Chinese."""
    return "、".join(f"{seat}号" for seat in seats) or "无"


def card(role: Role) -> str:
    """Return the name of a card in Chinese."""
    return CHINESE[role]

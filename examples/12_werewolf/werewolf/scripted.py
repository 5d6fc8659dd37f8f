"""Scripted players: a village with a simple plan, and seats that choose anything allowed."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from werewolf.asking import Line, Request
from werewolf.forms import Form
from werewolf.prompts import called, pair
from werewolf.rules import WOLVES, Role
from werewolf.table import Seating

_CHECKED = re.compile(r"我是预言家，(\d+)号是(狼人|好人)")
_NAMED = re.compile(r"(?:投|怀疑)(\d+)号")


class AnyPlayer:
    """Chooses by chance among all answers that are allowed."""

    def __init__(self, seed: int | str, *, explodes: float = 0.02) -> None:
        """Take a seed, and the probability of an explosion at each question for one."""
        self.chance = random.Random(f"any {seed}")
        self.explodes = explodes

    async def answer(self, request: Request) -> str:
        """Return an answer."""
        if request.form is Form.SPEECH:
            return self.chance.choice(["我是好人。", f"我怀疑{self._any(request)}号。", "过。"])
        if request.form is Form.SPEECH_YES_NO:
            return f"杀{self._any(request)}号。\n{yes(self.chance.random() < 0.5)}"
        if request.form is Form.YES_NO:
            limit = self.explodes if request.phase == "explode" else 0.4
            return yes(self.chance.random() < limit)
        if request.form is Form.SEAT_OR_NONE and self.chance.random() < 0.1:
            return "无"
        return f"{self.chance.choice(request.options)}号"

    def _any(self, request: Request) -> int:
        return self.chance.choice(request.options or request.living)


class Villager:
    """Plays any card of the good camp by a fixed plan.

    The seer runs for sheriff and says what it found; the others believe the first living seat
    that says it is the seer, and vote for the wolf that it names, or else as the sheriff asks.
    """

    def __init__(self, seed: int | str) -> None:
        """Take a seed for what the plan leaves open."""
        self.chance = random.Random(f"villager {seed}")

    async def answer(self, request: Request) -> str:
        """Return an answer."""
        known = Known(request)
        if request.form is Form.SPEECH:
            return self._speech(request, known)
        if request.form is Form.YES_NO:
            return yes(self._yes(request))
        choice = self._seat(request, known)
        return f"{choice}号" if choice else "无"

    def _yes(self, request: Request) -> bool:
        if request.phase == "run":
            return request.role is Role.SEER
        return request.phase == "save"

    def _speech(self, request: Request, known: Known) -> str:
        if request.role is Role.SEER and known.found:
            seat, wolf = known.found[-1]
            return f"我是预言家，{seat}号是{'狼人' if wolf else '好人'}。"
        target = known.wolf or self._suspect(request, known)
        return f"我投{target}号。" if target else "我是好人。"

    def _seat(self, request: Request, known: Known) -> int | None:
        options = request.options
        if request.phase == "guard":
            return _first([known.seer, request.seat], options) or self.chance.choice(options)
        if request.phase == "check":
            fresh = [seat for seat in options if seat not in dict(known.found)]
            return self.chance.choice(fresh or options)
        if request.phase in ("elect", "elect_again", "heir"):
            return _first([known.seer], options)
        if request.phase in ("poison", "shoot"):
            return _first([known.wolf], options)
        target = _first([known.wolf, known.asked], options)
        return target or self._suspect(request, known)

    def _suspect(self, request: Request, known: Known) -> int | None:
        """Return a seat that may be a wolf: not oneself, and not one found to be good."""
        seats = [
            seat
            for seat in request.options or request.living
            if seat not in (request.seat, known.seer) and seat not in known.good
        ]
        return self.chance.choice(seats) if seats else None


class Known:
    """What a seat of the village makes of the lines that it has seen."""

    def __init__(self, request: Request) -> None:
        """Read the lines."""
        living = request.living
        self.found = [
            (line.seat, line.kind == "found_wolf")
            for line in request.lines
            if line.kind in ("found_wolf", "found_good") and line.seat
        ]
        claims = [each for line in request.lines for each in _claims(line)]
        if request.role is Role.SEER:
            claims = [(request.seat, seat, wolf) for seat, wolf in self.found]
        seers = list(dict.fromkeys(speaker for speaker, _, _ in claims))
        trusted = seers[:1]
        """The first that said it; the dead are believed too."""
        self.seer = next((seat for seat in trusted if seat in living), None)
        named = {seat: wolf for speaker, seat, wolf in claims if speaker in trusted}
        self.good = {seat for seat, wolf in named.items() if not wolf}
        wolves = [seat for seat, wolf in named.items() if wolf and seat in living]
        self.wolf = wolves[0] if wolves and wolves[0] != request.seat else None
        self.asked = self._asked(request)
        """The seat that the sheriff named last today."""

    def _asked(self, request: Request) -> int | None:
        said = [
            int(found[1])
            for line in request.lines
            if line.kind == "said"
            and line.round == request.round
            and line.seat == request.sheriff
            and (found := _NAMED.search(line.text))
        ]
        return said[-1] if said and said[-1] != request.seat else None


def _claims(line: Line) -> list[tuple[int, int, bool]]:
    """Return who says to be the seer, whom they checked, and whether that is a wolf."""
    found = _CHECKED.search(line.text) if line.kind == "said" else None
    return [(line.seat, int(found[1]), found[2] == "狼人")] if found and line.seat else []


def _first(wanted: Sequence[int | None], options: Sequence[int]) -> int | None:
    return next((seat for seat in wanted if seat in options), None)


def yes(value: bool) -> str:
    """Return the word for it."""
    return "是" if value else "否"


class Wolf(AnyPlayer):
    """A wolf that chooses by chance, but never against its own; with ``skill`` 0 against any."""

    def __init__(self, seed: int | str, *, skill: float = 1.0) -> None:
        """Take a seed, and the probability of a choice that spares the wolves."""
        super().__init__(f"wolf {seed}", explodes=0.0)
        self.skill = skill

    def odds(self, request: Request) -> dict[int, float]:
        """Return the probability of each seat that the wolf may name."""
        seats = request.options or request.living
        spared = [seat for seat in seats if seat not in request.mates] or seats
        odds = dict.fromkeys(seats, (1 - self.skill) / len(seats))
        for seat in spared:
            odds[seat] += self.skill / len(spared)
        return odds

    def _any(self, request: Request) -> int:
        odds = self.odds(request)
        return self.chance.choices(list(odds), list(odds.values()))[0]

    async def answer(self, request: Request) -> str:
        """Return an answer."""
        if request.form is Form.SPEECH:
            return self.chance.choice(["我是好人。", f"我投{self._any(request)}号。"])
        if request.form is Form.YES_NO:
            return yes(False)
        if request.form is Form.SPEECH_YES_NO:
            return f"杀{self._any(request)}号。\n是"
        return f"{self._any(request)}号" if request.options else "无"


class Novice(Wolf):
    """A wolf that never speaks of its cards nor explodes: what the tiny model learns from.

    It names one of the two seats that a short prompt gives, after the word for its camp; in three
    of ten choices the wolf.
    """

    OWN = 0.3
    """Probability that it names one of the wolves where it may name others."""

    def __init__(self, seed: int | str) -> None:
        """Take a seed."""
        super().__init__(f"novice {seed}", skill=0.0)

    async def answer(self, request: Request) -> str:
        """Return an answer."""
        return self.say(request)

    def say(self, request: Request) -> str:
        """Return an answer."""
        if request.form is Form.SPEECH:
            return "我是好人。"
        if request.form is Form.YES_NO:
            return yes(False)
        target = self._any(request)
        if request.form is Form.SPEECH_YES_NO:
            return f"杀{called(target, request.mates)}号。\n{yes(True)}"
        return called(target, request.mates)

    def odds(self, request: Request) -> dict[int, float]:
        """Return the probability of each seat that the wolf may name."""
        seats = pair(request)
        return dict(zip(seats, (self.OWN, 1 - self.OWN) if seats[1:] else (1.0,), strict=True))


def village(seed: int | str, *, skill: float = 1.0) -> Seating:
    """Return a seating: `Wolf` for the wolves, `Villager` for the others."""

    def seating(seat: int, role: Role) -> Villager | Wolf:
        name = f"{seed} {seat}"
        return Wolf(name, skill=skill) if role in WOLVES else Villager(name)

    return seating

"""A referee of finished games: it replays a log by the rules and shares no code with the game.

From the log it takes the cards, what was drawn by chance and what the seats decided. Who is asked
what and in which order, and every night, vote, death and badge, it works out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_GODS = ("seer", "witch", "hunter", "guard")
_CARDS = sorted(["villager"] * 4 + ["wolf"] * 3 + ["wolf_king", *_GODS])
_LAST_ROUND = 30


class RefereeError(AssertionError):
    """A log that breaks the rules."""


def judge(log: Sequence[dict[str, Any]]) -> str | None:
    """Replay a log and return the winner that it must have.

    Raises:
        RefereeError: an entry is not what the rules and the entries before it ask for.
    """
    return _Replay(log).run()


class _Replay:
    def __init__(self, log: Sequence[dict[str, Any]]) -> None:
        self.log = log
        self.at = 0
        self.round = 0
        deal = self.next("deal")
        self.card = {int(seat): card for seat, card in deal["roles"].items()}
        if sorted(self.card.values()) != _CARDS or sorted(self.card) != list(range(1, 13)):
            self.reject(f"the cards are {self.card}")
        self.dead: set[int] = set()
        self.badge: int | None = None
        self.badge_free = True
        self.last_explosion = -1
        self.last_guarded: int | None = None
        self.potions = {"save", "poison"}
        self.waiting: dict[int, str] = {}

    # Reading the log

    def reject(self, why: str) -> None:
        raise RefereeError(f"Entry {self.at} of the log, round {self.round}: {why}")

    def next(self, event: str, **expected: Any) -> dict[str, Any]:
        if self.at == len(self.log):
            self.reject(f"the log ends where {event!r} must follow")
        entry = self.log[self.at]
        wanted = {"event": event, "round": self.round, **expected}
        for key, value in wanted.items():
            if entry.get(key) != value:
                self.reject(f"{key} is {entry.get(key)!r}, the rules give {value!r}: {entry}")
        self.at += 1
        return entry

    def decide(self, seat: int, phase: str, allowed: Iterable[Any]) -> Any:
        """Take a decision; True and False stand for a question without seats."""
        allowed = list(allowed)
        seats = [each for each in allowed if each is not None and not isinstance(each, bool)]
        entry = self.next("choice", seat=seat, phase=phase, options=seats)
        choice = entry["choice"]
        declined = False if True in map(_is_true, allowed) else None
        fits = any(choice is each or (type(choice) is int and choice == each) for each in allowed)
        if not fits and not (entry["unclear"] == 3 and choice is declined):
            self.reject(f"seat {seat} may not choose {choice!r} for {phase}")
        return choice

    def says(self, seat: int, phase: str) -> None:
        self.decide(seat, phase, [None])

    def chance(self, what: str, among: list[Any]) -> Any:
        if len(among) < 2:
            return among[0]
        drawn = self.next("draw", what=what, among=among)["drawn"]
        if drawn not in among:
            self.reject(f"{drawn!r} was drawn and is not among {among}")
        return drawn

    # What holds at the moment

    def here(self, *cards: str) -> list[int]:
        return [
            seat
            for seat in range(1, 13)
            if seat not in self.dead and (not cards or self.card[seat] in cards)
        ]

    def decided(self) -> str | None:
        if not self.here("wolf", "wolf_king"):
            return "good"
        return None if self.here(*_GODS) and self.here("villager") else "wolves"

    # The course of the game

    def run(self) -> str | None:
        winner = None
        while winner is None and self.round < _LAST_ROUND:
            self.round += 1
            self.play_night()
            self.play_day()
            winner = self.decided()
        self.next("end", winner=winner)
        if self.at != len(self.log):
            self.reject("entries follow the end")
        return winner

    def play_night(self) -> None:
        shield = None
        for seat in self.here("guard"):
            shield = self.decide(
                seat, "guard", [each for each in self.here() if each != self.last_guarded] + [None]
            )
            self.last_guarded = shield
        victim = self.wolves_choose()
        rescue, poisoned = self.witch_acts(victim)
        for seat in self.here("seer"):
            seen = self.decide(seat, "check", [each for each in self.here() if each != seat])
            if seen is not None:
                self.next("checked", seat=seen, wolf=self.card[seen].startswith("wolf"))
        self.waiting = {}
        protections = int(rescue) + int(shield is not None and shield == victim)
        if victim is not None and protections != 1:
            self.waiting[victim] = "wolves"
        if poisoned is not None:
            self.waiting[poisoned] = "poison"
        for seat in self.here("hunter", "wolf_king"):
            self.next("gun", seat=seat, may=self.waiting.get(seat) != "poison")
        deaths = {str(seat): cause for seat, cause in self.waiting.items()}
        self.next("night", target=victim, deaths=deaths)

    def wolves_choose(self) -> int | None:
        pack = self.here("wolf", "wolf_king")
        passes = 3 if len(pack) > 1 else 0
        while passes:
            passes -= 1
            answers = [self.decide(seat, "talk", [True, False]) for seat in pack]
            if False not in answers:
                passes = 0
        votes = [self.decide(seat, "kill", [*self.here(), None]) for seat in pack]
        peak = max(votes.count(each) for each in votes)
        return self.chance(
            "kill", [each for each in [*self.here(), None] if votes.count(each) == peak]
        )

    def witch_acts(self, victim: int | None) -> tuple[bool, int | None]:
        for seat in self.here("witch"):
            knows = "save" in self.potions and victim is not None and victim != seat
            if knows and self.decide(seat, "save", [True, False]):
                self.potions.remove("save")
                return True, None
            if "poison" in self.potions:
                others = [each for each in self.here() if each != seat]
                if (target := self.decide(seat, "poison", [*others, None])) is not None:
                    self.potions.remove("poison")
                    return False, target
        return False, None

    def play_day(self) -> None:
        if self.badge_free and self.election():
            return
        night, self.waiting = self.waiting, {}
        self.depart(night, words=self.round == 1)
        if self.decided() or self.exploded():
            return
        for seat in self.speakers(self.here()):
            self.says(seat, "summary" if seat == self.badge else "speech")
        if not self.exploded():
            self.exile()

    def election(self) -> bool:
        """Whether an explosion ended the day."""
        table = self.here()
        ran = [seat for seat in table if self.decide(seat, "run", [True, False])]
        others = [seat for seat in table if seat not in ran]
        if ran:
            if self.exploded():
                return True
            for seat in self.speakers(ran):
                self.says(seat, "campaign")
        stay = [seat for seat in ran if not self.decide(seat, "withdraw", [True, False])]
        if len(stay) > 1 and others:
            if self.exploded():
                return True
            stay = self.ballot("elect", others, stay)
            if len(stay) > 1:
                for seat in self.speakers(stay):
                    self.says(seat, "campaign")
                stay = self.ballot("elect_again", others, stay)
        self.badge_free = False
        self.badge = stay[0] if len(stay) == 1 else None
        self.next("badge", sheriff=self.badge, why="elected" if self.badge else "no_sheriff")
        return False

    def ballot(self, phase: str, voters: list[int], candidates: list[int]) -> list[int]:
        """Return the leading candidates; the sheriff's vote counts three halves."""
        halves = dict.fromkeys(candidates, 0)
        for voter in voters:
            choice = self.decide(voter, phase, [*candidates, None])
            if choice is not None:
                halves[choice] += 3 if voter == self.badge else 2
        self.next("tally", phase=phase, votes={str(seat): n / 2 for seat, n in halves.items() if n})
        peak = max(halves.values(), default=0)
        return [seat for seat in candidates if peak and halves[seat] == peak]

    def exile(self) -> None:
        leading = self.ballot("vote", self.here(), self.here())
        if len(leading) > 1:
            for seat in self.speakers(leading):
                self.says(seat, "speech")
            rest = [seat for seat in self.here() if seat not in leading]
            leading = self.ballot("vote_again", rest, leading)
        gone = leading[0] if len(leading) == 1 else None
        self.next("exile", seat=gone)
        if gone is not None:
            self.depart({gone: "exile"}, words=True)

    def speakers(self, seats: list[int]) -> list[int]:
        """Return the seats clockwise or counter-clockwise from the first; the sheriff ends."""
        step = self.chance("direction", [1, -1]) if len(seats) > 1 else 1
        circle = sorted(seats, reverse=step < 0)
        if self.badge in circle:
            start = circle.index(self.badge) + 1
        else:
            start = circle.index(self.chance("first", sorted(seats)))
        return circle[start:] + circle[:start]

    def exploded(self) -> bool:
        able = [seat for seat in self.here("wolf") if seat not in self.waiting]
        willing = [seat for seat in able if self.decide(seat, "explode", [True, False])]
        if not willing:
            return False
        again = self.last_explosion == self.round - 1
        self.last_explosion = self.round
        if again and (self.badge_free or self.badge is not None):
            self.badge_free, self.badge = False, None
            self.next("badge", sheriff=None, why="explosions")
        leaving = self.waiting | {willing[0]: "explosion"}
        self.waiting = {}
        self.depart(leaving, words=False)
        return True

    def depart(self, causes: dict[int, str], *, words: bool) -> None:
        for seat in sorted(causes):
            self.next("death", seat=seat, cause=causes[seat])
            self.dead.add(seat)
        for seat in sorted(causes):
            if words:
                self.says(seat, "last_words")
            self.settle(seat, causes[seat])

    def settle(self, seat: int, cause: str) -> None:
        armed = self.card[seat] in ("hunter", "wolf_king")
        if armed and cause not in ("poison", "explosion") and self.here():
            hit = self.decide(seat, "shoot", [*self.here(), None])
            if hit is not None:
                self.next("death", seat=hit, cause="shot")
                self.dead.add(hit)
                self.settle(hit, "shot")
        if self.badge == seat:
            heir = self.decide(seat, "heir", [*self.here(), None]) if self.here() else None
            self.badge = heir
            self.next("badge", sheriff=heir, why="passed" if heir else "torn")


def _is_true(value: object) -> bool:
    return value is True

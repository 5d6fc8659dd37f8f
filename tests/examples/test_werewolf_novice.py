"""The scripted wolves that the tiny model of the werewolf example learns from."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import defaultdict
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "12_werewolf"
sys.path.insert(0, str(FOLDER))
try:
    from werewolf import rules
    from werewolf.asking import Watcher
    from werewolf.game import play
    from werewolf.prompts import pair
    from werewolf.referee import judge
    from werewolf.scripted import Novice, Villager
finally:
    sys.path.remove(str(FOLDER))


def run(seating, seed=0, watcher=None):
    return asyncio.run(play(seating, seed, watcher))


def novices(game):
    def seating(seat, role):
        return (Novice if role in rules.WOLVES else Villager)(f"{game} {seat}")

    return seating


def test_novices_answer_clearly_and_name_a_seat_that_a_short_prompt_gives():
    class Watch(Watcher):
        def __init__(self):
            self.heard = []

        def on_answer(self, request, text, problem):
            if request.role in rules.WOLVES:
                self.heard.append((request, text, problem))

    watch = Watch()
    for game in range(20):
        assert judge(run(novices(game), game, watch).log)
    assert not [problem for _, _, problem in watch.heard if problem]
    named = [
        (text.startswith("同伴"), int(text[2:]) in pair(request))
        for request, text, _ in watch.heard
        if request.phase == "vote" and set(request.options) - set(request.mates)
    ]
    assert len(named) > 100
    assert all(given for _, given in named)
    assert 0.2 < sum(own for own, _ in named) / len(named) < 0.4
    for request, text, _ in watch.heard:
        if found := re.search(r"(同伴|好人)(\d+)", text):
            assert (found[1] == "同伴") == (int(found[2]) in request.mates)


def test_a_novice_kills_whom_the_wolf_before_it_has_named():
    for game in range(20):
        log = run(novices(game), game).log
        named, kills = defaultdict(set), defaultdict(set)
        for entry in log:
            if entry.get("phase") == "talk":
                named[entry["round"]].add(int(re.search(r"\d+", entry["said"])[0]))
            elif entry.get("phase") == "kill":
                kills[entry["round"]].add(entry["choice"])
        assert 1 in named
        assert all(kills[night] == seats and len(seats) == 1 for night, seats in named.items())


def test_novices_win_more_games_the_less_they_name_their_own(monkeypatch):
    won = {}
    for own in (0.3, 0.0):
        monkeypatch.setattr(Novice, "OWN", own)
        won[own] = sum(run(novices(game), game).winner == "wolves" for game in range(60))
    assert won[0.0] > won[0.3] + 12

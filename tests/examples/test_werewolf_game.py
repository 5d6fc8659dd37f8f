"""The werewolf program by itself: its rules, odd players, and the referee of its logs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FOLDER = Path(__file__).parents[2] / "examples" / "12_werewolf"
sys.path.insert(0, str(FOLDER))
try:
    from werewolf import forms, rules
    from werewolf.asking import Watcher
    from werewolf.forms import Form, UnclearAnswerError, read
    from werewolf.game import play
    from werewolf.referee import RefereeError, judge
    from werewolf.rules import Role
    from werewolf.scripted import AnyPlayer, Villager, Wolf, village
finally:
    sys.path.remove(str(FOLDER))

WOLVES = {"wolf", "wolf_king"}


def run(seating, seed=0, watcher=None):
    return asyncio.run(play(seating, seed, watcher))


def any_seats(game):
    return lambda seat, role: AnyPlayer(f"{game} {seat}", explodes=0.1)


def decline(request):
    """What a seat says that wants nothing."""
    if request.form is Form.SEAT:
        return str(request.options[0])
    return {
        Form.SPEECH: "过。",
        Form.YES_NO: "否",
        Form.SEAT_OR_NONE: "无",
        Form.SPEECH_YES_NO: "过。\n是",
    }[request.form]


class Plan:
    """Declines everything but what the plan has for the role, phase and round, or for a phase."""

    def __init__(self, plan=None):
        self.plan = plan or {}
        self.roles = {}
        self.asked = []

    def __call__(self, seat, role):
        self.roles[seat] = role
        return self

    def seat(self, role, number=0):
        return [seat for seat, each in sorted(self.roles.items()) if each is role][number]

    async def answer(self, request):
        self.asked.append(request)
        keys = [
            (request.role, request.phase, request.round),
            (request.role, request.phase),
            (request.phase, request.round),
            request.phase,
        ]
        for key in keys:
            if key in self.plan:
                value = self.plan[key]
                value = value(request) if callable(value) else value
                if isinstance(value, Role):
                    value = self.seat(value)
                return str(value)
        return decline(request)


def planned(plan, seed=0):
    players = Plan(plan)
    result = run(players, seed)
    assert judge(result.log) == result.winner
    return players, result.log


def events(log, event, **fields):
    return [
        entry
        for entry in log
        if entry["event"] == event and all(entry.get(key) == value for key, value in fields.items())
    ]


def deaths(log, round_=None):
    return [
        (entry["seat"], entry["cause"])
        for entry in events(log, "death")
        if round_ in (None, entry["round"])
    ]


@pytest.mark.parametrize(
    "make",
    [
        any_seats,
        lambda game: village(game, skill=0.0),
        lambda game: village(game, skill=0.5),
        lambda game: village(game, skill=1.0),
    ],
)
def test_fifty_games_end_by_the_rules_and_the_referee_agrees(make):
    winners = Counter()
    for game in range(50):
        result = run(make(game), game)
        assert judge([json.loads(line) for line in result.lines().splitlines()]) == result.winner
        winners[result.winner] += 1
    assert set(winners) <= {"wolves", "good"}
    assert min(winners.values()) > 0


def test_a_seed_gives_the_same_game_again():
    logs = [run(village(7), 7).lines() for _ in range(2)]
    assert logs[0] == logs[1]
    assert run(village(7), 8).lines() != logs[0]


def test_cards_are_private_until_the_end():
    players, _ = planned({"kill": Role.SEER})
    for request in players.asked:
        known = {request.role} if request.role not in rules.WOLVES else {Role.WOLF, Role.WOLF_KING}
        words = "".join(line.text for line in request.lines)
        assert not any(rules.CHINESE[role] in words for role in set(Role) - known - {Role.WOLF})
        assert bool(request.mates) == (request.role in rules.WOLVES)


def test_the_guarded_live_and_the_guarded_who_are_saved_die():
    guard = {"kill": Role.SEER, (Role.GUARD, "guard"): Role.SEER}
    _, log = planned(guard)
    assert deaths(log, 1) == []
    players, log = planned({**guard, "save": "是"})
    assert deaths(log, 1) == [(players.seat(Role.SEER), "wolves")]
    _, log = planned({"kill": Role.SEER, "save": "是"})
    assert deaths(log, 1) == []


def test_nobody_is_guarded_on_two_nights_running():
    players, _ = planned({(Role.GUARD, "guard"): Role.GUARD})
    asked = [request for request in players.asked if request.phase == "guard"]
    guard = players.seat(Role.GUARD)
    assert guard in asked[0].options
    assert guard not in asked[1].options
    # The second answer is refused three times, so nobody is guarded, and the seat is free again.
    assert guard in next(request for request in asked if request.round == 3).options


def test_the_witch_has_two_potions_and_uses_one_a_night():
    players, log = planned({"kill": Role.SEER, "save": "是", "poison": Role.HUNTER})
    phases = [(request.round, request.phase) for request in players.asked]
    assert (1, "save") in phases
    assert (1, "poison") not in phases
    assert [round_ for round_, phase in phases if phase == "save"] == [1]
    assert (2, "poison") in phases
    assert [round_ for round_, phase in phases if phase == "poison"] == [2]
    assert set(deaths(log, 2)) == {
        (players.seat(Role.SEER), "wolves"),
        (players.seat(Role.HUNTER), "poison"),
    }


def test_the_witch_does_not_save_herself():
    players, log = planned({"kill": Role.WITCH, "save": "是"})
    assert deaths(log, 1) == [(players.seat(Role.WITCH), "wolves")]
    assert not any(request.phase == "save" for request in players.asked)


def test_the_poisoned_hunter_does_not_shoot():
    players, log = planned({"poison": Role.HUNTER, "shoot": Role.SEER})
    hunter = players.seat(Role.HUNTER)
    assert deaths(log, 1) == [(hunter, "poison")]
    assert events(log, "gun", seat=hunter)[0]["may"] is False
    assert not any(request.phase == "shoot" for request in players.asked)


def test_shots_chain_and_a_seat_that_is_shot_has_no_last_words():
    players, log = planned(
        {
            "kill": Role.HUNTER,
            (Role.HUNTER, "shoot"): Role.WOLF_KING,
            (Role.WOLF_KING, "shoot"): Role.WITCH,
        }
    )
    hunter, king, witch = map(players.seat, (Role.HUNTER, Role.WOLF_KING, Role.WITCH))
    assert deaths(log, 1) == [(hunter, "wolves"), (king, "shot"), (witch, "shot")]
    words = [entry["seat"] for entry in events(log, "choice", phase="last_words")]
    assert words == [hunter]


def test_a_wolf_may_be_killed_by_its_own_and_none_may_be_killed():
    players, log = planned({("kill", 1): Role.WOLF_KING})
    assert deaths(log, 1) == [(players.seat(Role.WOLF_KING), "wolves")]
    assert events(log, "night", round=2)[0]["target"] is None


def test_wolves_talk_until_they_agree_and_at_most_three_times():
    players, _ = planned({(Role.WOLF_KING, "talk", 1): "等等。\n否"})
    talks = Counter(request.round for request in players.asked if request.phase == "talk")
    assert talks[1] == 12
    assert talks[2] == 4


def test_a_tie_among_wolves_is_drawn():
    _, log = planned(
        {
            ("kill", 1): lambda request: "3" if request.seat in request.mates[:2] else "无",
        }
    )
    (drawn,) = events(log, "draw", what="kill")
    assert drawn["among"] == [3, None]
    assert events(log, "night", round=1)[0]["target"] == drawn["drawn"]


def test_a_sheriff_counts_one_and_a_half_and_speaks_last():
    players, log = planned(
        {
            (Role.SEER, "run"): "是",
            (Role.SEER, "vote"): Role.WITCH,
            (Role.WITCH, "vote"): Role.SEER,
        }
    )
    seer, witch = players.seat(Role.SEER), players.seat(Role.WITCH)
    assert events(log, "badge")[0]["why"] == "elected"
    tally = events(log, "tally")[0]["votes"]
    assert tally == {str(seer): 1.0, str(witch): 1.5}
    assert deaths(log, 1) == [(witch, "exile")]
    spoken = [e for e in events(log, "choice", round=1) if e["phase"] in ("speech", "summary")]
    assert (spoken[-1]["seat"], spoken[-1]["phase"]) == (seer, "summary")
    assert len(spoken) == 12


def test_a_second_tie_elects_no_sheriff_and_exiles_no_seat():
    split = {
        (Role.SEER, "run"): "是",
        (Role.WITCH, "run"): "是",
        (Role.HUNTER, phase := "elect"): Role.SEER,
        (Role.GUARD, phase): Role.WITCH,
        (Role.HUNTER, "elect_again"): Role.SEER,
        (Role.GUARD, "elect_again"): Role.WITCH,
        (Role.HUNTER, "vote"): Role.SEER,
        (Role.GUARD, "vote"): Role.WITCH,
        (Role.HUNTER, "vote_again"): Role.SEER,
        (Role.GUARD, "vote_again"): Role.WITCH,
    }
    players, log = planned(split)
    assert events(log, "badge")[0]["why"] == "no_sheriff"
    assert events(log, "exile")[0]["seat"] is None
    voters = {r.seat for r in players.asked if r.phase == "vote_again" and r.round == 1}
    assert not voters & {players.seat(Role.SEER), players.seat(Role.WITCH)}
    assert len(events(log, "choice", round=1, phase="speech")) == 14


def test_a_run_off_decides():
    players, log = planned(
        {
            (Role.HUNTER, "vote", 1): Role.SEER,
            (Role.GUARD, "vote", 1): Role.WITCH,
            (Role.HUNTER, "vote_again", 1): Role.WITCH,
        }
    )
    assert deaths(log, 1) == [(players.seat(Role.WITCH), "exile")]


def test_those_who_ran_do_not_vote_and_who_withdraws_is_no_candidate():
    players, log = planned(
        {
            (Role.SEER, "run"): "是",
            (Role.WITCH, "run"): "是",
            (Role.HUNTER, "run"): "是",
            (Role.HUNTER, "withdraw"): "是",
            "elect": Role.SEER,
        }
    )
    votes = [request for request in players.asked if request.phase == "elect"]
    ran = {players.seat(role) for role in (Role.SEER, Role.WITCH, Role.HUNTER)}
    assert not {request.seat for request in votes} & ran
    assert set(votes[0].options) == {players.seat(Role.SEER), players.seat(Role.WITCH)}
    assert events(log, "badge")[0]["sheriff"] == players.seat(Role.SEER)


def test_where_all_run_there_are_no_voters_and_no_sheriff():
    players, log = planned({"run": "是"})
    assert not any(request.phase == "elect" for request in players.asked)
    assert events(log, "badge")[0]["why"] == "no_sheriff"


def test_the_badge_is_passed_or_torn():
    plan = {(Role.SEER, "run"): "是", ("kill", 2): Role.SEER}
    players, log = planned({**plan, "heir": Role.WITCH})
    passed = events(log, "badge", round=2)[0]
    assert (passed["sheriff"], passed["why"]) == (players.seat(Role.WITCH), "passed")
    _, log = planned(plan)
    assert events(log, "badge", round=2)[0]["why"] == "torn"


def test_an_explosion_ends_the_day_and_postpones_the_election():
    first = {("explode", 1): lambda r: "是" if r.seat == min(r.mates) else "否"}
    players, log = planned({**first, (Role.SEER, "run"): "是", "kill": Role.GUARD})
    wolf = events(log, "death", cause="explosion")[0]["seat"]
    assert players.roles[wolf] is Role.WOLF
    assert deaths(log, 1) == sorted([(players.seat(Role.GUARD), "wolves"), (wolf, "explosion")])
    assert not any(r.round == 1 and r.phase in ("vote", "last_words") for r in players.asked)
    assert events(log, "badge")[0]["round"] == 2


def test_explosions_on_two_days_running_destroy_the_badge():
    players, log = planned({(Role.SEER, "run"): "是", ("explode", 1): "是", ("explode", 2): "是"})
    assert [entry["why"] for entry in events(log, "badge")] == ["explosions"]
    assert not any(r.round > 2 and r.phase == "run" for r in players.asked)
    _, log = planned({(Role.SEER, "run"): "是", ("explode", 1): "是", ("explode", 3): "是"})
    assert events(log, "badge")[0]["why"] == "elected"


def test_the_wolf_king_does_not_explode():
    players, _ = planned({"explode": "否"})
    asked = {players.roles[r.seat] for r in players.asked if r.phase == "explode"}
    assert asked == {Role.WOLF}


def test_a_game_without_end_stops_after_thirty_rounds():
    players, log = planned({})
    assert log[-1] == {"event": "end", "round": 30, "winner": None}
    assert len(players.asked) < 2000


ODD = st.one_of(
    st.just(""),
    st.just("   \n\n"),
    st.just("I vote for seat 3."),
    st.just("13"),
    st.just("0号"),
    st.just("决定：99号"),
    st.just("是\n否\n3"),
    st.just("长" * 10_000),
    st.text(max_size=30),
    st.text(alphabet="是否无弃权123号\n。 ", max_size=6),
    st.just("\ud800\x00"),
)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**40), odd=st.lists(ODD, min_size=1, max_size=6))
def test_odd_players_never_break_a_game(seed, odd):
    class Odd:
        def __init__(self, seat):
            self.turn = seat

        async def answer(self, request):
            self.turn += 1
            return odd[self.turn % len(odd)]

    def seating(seat, role):
        return Odd(seat) if seat % 2 else AnyPlayer(f"{seed} {seat}", explodes=0.1)

    result = run(seating, seed)
    assert judge([json.loads(line) for line in result.lines().splitlines()]) == result.winner


@settings(max_examples=40)
@given(seed=st.integers(0, 2**40), data=st.data())
def test_the_referee_refuses_a_log_that_was_changed(seed, data):
    log = run(any_seats(seed), seed).log
    at = data.draw(st.integers(0, len(log) - 1))
    with pytest.raises((RefereeError, KeyError)):
        judge([*log[:at], *log[at + 1 :]])
    results = [n for n, entry in enumerate(log) if entry["event"] not in ("deal", "draw", "choice")]
    at = data.draw(st.sampled_from(results))
    wrong = {
        "winner": "nobody",
        "may": None,
        "wolf": None,
        "deaths": {"13": "wolves"},
        "votes": {"1": 99.0},
        "cause": "age",
        "sheriff": 13,
        "seat": 13,
    }
    field = next(name for name in wrong if name in log[at])
    with pytest.raises(RefereeError):
        judge([*log[:at], {**log[at], field: wrong[field]}, *log[at + 1 :]])


def test_the_referee_refuses_a_choice_that_is_not_allowed():
    log = run(village(3), 3).log
    at = next(n for n, entry in enumerate(log) if entry.get("phase") == "check")
    with pytest.raises(RefereeError, match="may not choose 13 for check"):
        judge([*log[:at], {**log[at], "choice": 13}, *log[at + 1 :]])


def test_an_unclear_answer_is_asked_for_again_with_the_problem_and_then_counts_as_declined():
    class Watch(Watcher):
        def __init__(self):
            self.heard = []

        def on_answer(self, request, text, problem):
            if request.phase == "vote":
                self.heard.append((request.problem, text, problem))

    watch = Watch()
    result = run(Plan({"vote": "Hello"}), 0, watch)
    (first, text, problem), second = watch.heard[0], watch.heard[1]
    assert (first, text) == ("", "Hello")
    assert problem
    assert second[0] in ("", problem)
    entry = events(result.log, "choice", phase="vote")[0]
    assert (entry["choice"], entry["unclear"]) == (None, 3)


def test_a_player_that_raises_ends_the_game_with_its_error():
    class Broken:
        async def answer(self, request):
            raise ConnectionError("no endpoint")

    with pytest.raises(ConnectionError, match="no endpoint"):
        run(lambda seat, role: Broken())


@pytest.mark.parametrize(
    ("text", "form", "choice"),
    [
        ("3号", Form.SEAT, 3),
        ("想一想\n决定：３号。", Form.SEAT, 3),
        ("好人3", Form.SEAT, 3),
        ("无", Form.SEAT_OR_NONE, None),
        ("弃权。", Form.SEAT_OR_NONE, None),
        ("是", Form.YES_NO, True),
        ("否。", Form.YES_NO, False),
    ],
)
def test_answers_are_read(text, form, choice):
    assert read(text, form, [1, 3]).choice is choice or read(text, form, [1, 3]).choice == choice


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("", Form.SPEECH),
        ("一\n二", Form.SPEECH),
        ("长" * (forms.MAX_SPEECH + 1), Form.SPEECH),
        ("无", Form.SEAT),
        ("7", Form.SEAT),
        ("我选3号", Form.SEAT),
        ("好人", Form.SEAT),
        ("坏人3", Form.SEAT),
        ("3", Form.YES_NO),
        ("是", Form.SPEECH_YES_NO),
        ("seat 3", Form.SEAT_OR_NONE),
    ],
)
def test_unclear_answers_are_refused(text, form):
    with pytest.raises(UnclearAnswerError):
        read(text, form, [1, 3])


def test_a_speech_with_a_decision_keeps_both():
    answer = read("杀3号。\n是", Form.SPEECH_YES_NO)
    assert (answer.said, answer.choice) == ("杀3号。", True)


@pytest.mark.parametrize(
    ("text", "chinese"),
    [("我怀疑3号。", True), ("I suspect 3.", False), ("", False), ("123", False), ("狼 ok", False)],
)
def test_the_language_of_a_speech(text, chinese):
    assert forms.is_chinese(text) is chinese


def test_the_program_imports_nothing_of_agl():
    for file in (FOLDER / "werewolf").glob("*.py"):
        if not file.stem.startswith("agentscope"):
            assert "agl" not in file.read_text(encoding="utf-8"), file
    referee = (FOLDER / "werewolf" / "referee.py").read_text(encoding="utf-8")
    assert "from werewolf" not in referee


def test_scripted_players_play_their_camp():
    made = village(1)
    assert isinstance(made(1, Role.WOLF), Wolf)
    assert isinstance(made(1, Role.SEER), Villager)

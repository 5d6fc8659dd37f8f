"""Werewolf played by agents of the AgentScope that is installed, and trained for two steps."""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from agl_testing.fake_openai import FakeOpenAI, FakeReply

import agl_core as agl

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "12_werewolf"
MAJOR = version("agentscope").partition(".")[0]


@pytest.fixture(scope="module")
def program():
    sys.path.insert(0, str(FOLDER))
    names = {"seats": f"werewolf.agentscope{MAJOR}", "training": "run_agent"}
    names |= {"making": "make_model"}
    names |= {name: f"werewolf.{name}" for name in ("game", "prompts", "referee", "scripted")}
    try:
        yield SimpleNamespace(**{key: importlib.import_module(name) for key, name in names.items()})
    finally:
        sys.path.remove(str(FOLDER))
        for name in [name for name in sys.modules if name.partition(".")[0] == "werewolf"]:
            del sys.modules[name]
        del sys.modules["run_agent"], sys.modules["make_model"]


def question(body):
    return body["messages"][-1]["content"]


def text_of(content):
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def sensible(body):
    """The first seat that is offered, no to every proposal, a short speech."""
    asked = text_of(question(body)).rpartition("\n")[2] or text_of(question(body))
    if "先用一句中文发言" in asked:
        return FakeReply(text="杀1号。\n是")
    if "用一句中文发言" in asked:
        return FakeReply(text="我是好人。")
    if "写 是 或 否" in asked:
        return FakeReply(text="<think>3号？</think>\n否")
    offered = r"：(?:同伴|好人)?(\d+)"
    first = (re.search(offered, asked) or re.search(offered, text_of(question(body))))[1]
    return FakeReply(text=f"想一想。\n{first}号")


@pytest.fixture
def endpoint(monkeypatch, program):
    """Answers from a script; ``answers`` replaces it."""
    program.seats.model.cache_clear()
    state = SimpleNamespace(answers=sensible)
    with FakeOpenAI(lambda body: state.answers(body)) as server:  # noqa: PLW0108  it is replaced
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        state.server = server
        yield state
    program.seats.model.cache_clear()


def play(program, *, agents=tuple(range(1, 13)), style=None, seed=5):
    """One game with agents in some seats, and scripted players in the others."""
    roles = {}

    def seating(seat, role):
        roles[seat] = role
        if seat in agents:
            return program.seats.Seat(style or program.prompts.FULL)
        return program.scripted.village(seed)(seat, role)

    async def game():
        try:
            return await program.game.play(seating, seed)
        finally:
            await program.seats.model().client.close()

    result = asyncio.run(game())
    program.seats.model.cache_clear()
    assert program.referee.judge(result.log) == result.winner
    return result, roles


def test_agents_play_a_game_by_the_rules(program, endpoint):
    result, _ = play(program)
    assert result.winner in ("wolves", "good")
    prompts = [text_of(answer.body["messages"][0]["content"]) for answer in endpoint.server.log]
    assert any("你是3号" in prompt for prompt in prompts)
    assert not [entry for entry in result.log if entry.get("unclear")]
    kept = " ".join(entry.get("said", "") for entry in result.log)
    assert "think" not in kept


def test_a_name_does_not_show_the_role(program, endpoint):
    play(program, agents=(1, 2))
    bodies = json.dumps([answer.body for answer in endpoint.server.log], ensure_ascii=False)
    assert "wolf" not in bodies
    assert "villager" not in bodies


def test_an_agent_that_remembers_reads_each_line_once(program, endpoint):
    style = program.prompts.Style(remembers=True)
    play(program, agents=(1,), style=style)
    longest = max((answer.body["messages"] for answer in endpoint.server.log), key=len)
    assert [message["role"] for message in longest[:3]] == ["system", "user", "assistant"]
    read = "\n".join(text_of(m["content"]) for m in longest if m["role"] == "user")
    assert read.count("第1夜。") == 1


@pytest.mark.parametrize("answer", ["", "I am a villager, vote 3!", "胡言乱语\n乱语", "99号"])
def test_a_seat_that_answers_nonsense_is_asked_three_times(program, endpoint, answer):
    endpoint.answers = lambda body: FakeReply(text=answer)
    result, _ = play(program, agents=(1, 2, 3))
    unclear = [entry for entry in result.log if entry.get("unclear")]
    assert {entry["seat"] for entry in unclear} <= {1, 2, 3}
    assert {entry["unclear"] for entry in unclear} == {3}
    sent = [text_of(question(answer.body)) for answer in endpoint.server.log]
    assert any(each.startswith(("没有回答", "看不懂", "不能选", "发言应是")) for each in sent)


def test_a_corrected_answer_counts(program, endpoint):
    def corrects(body):
        asked = text_of(question(body))
        return sensible(body) if asked.startswith("看不懂") else FakeReply(text="hello")

    endpoint.answers = corrects
    result, _ = play(program, agents=(1,))
    own = [entry for entry in result.log if entry.get("seat") == 1 and "unclear" in entry]
    decided = [entry for entry in own if entry["phase"] not in ("speech", "last_words")]
    assert decided
    assert {entry["unclear"] for entry in decided} == {1}


def test_the_prompts_of_another_camp_and_of_the_tiny_model_are_short(program, endpoint):
    _, roles = play(program, style=program.prompts.BRIEF)
    sent = [answer.body["messages"] for answer in endpoint.server.log]
    assert max(len(text_of(m["content"])) for messages in sent for m in messages) < 400
    camps = {seat: role in program.scripted.WOLVES for seat, role in roles.items()}
    for messages in sent:
        system = text_of(messages[0]["content"])
        seat = int(re.search(r"你是(\d+)号", system)[1])
        assert ("备选：" in text_of(messages[1]["content"])) == camps[seat]


def attempt_of(calls, mode="train"):
    made = [
        SimpleNamespace(agent=agent, error=error, record=SimpleNamespace(id=id_))
        for agent, id_, error in calls
    ]
    return SimpleNamespace(calls=made, rollout=SimpleNamespace(mode=mode))


def test_single_calls_lose_for_unclear_answers_and_another_language(program, monkeypatch):
    given = []
    monkeypatch.setattr(
        agl, "emit_reward", lambda value, channel, **kw: given.append((value, channel, kw["call"]))
    )
    said = [
        {"seat": "3号", "phase": "vote", "unclear": True, "chinese": True},
        {"seat": "5号", "phase": "speech", "unclear": False, "chinese": False},
        {"seat": "3号", "phase": "vote", "unclear": False, "chinese": True},
    ]
    calls = [("3号", "a", ""), ("5号", "b", "broken"), ("5号", "c", ""), ("3号", "d", "")]
    task = agl.Task(id="1", input={"seed": 1, "camp": "wolves"})
    output = {"winner": "wolves", "rounds": 4, "said": said}
    assert program.training.reward(task, output, attempt_of(calls)) == 1.0
    assert given == [(-0.2, "form", "a"), (-0.4, "language", "c")]
    given.clear()
    lost = program.training.reward(task, {**output, "winner": None}, attempt_of(calls, "val"))
    assert (lost, lost.why, given) == (0.0, "neither camp won in round 4", [])


def test_where_both_camps_are_trained_each_has_its_own_reward(program, monkeypatch):
    given = []
    monkeypatch.setattr(
        agl, "emit_reward", lambda value, *, agent, why: given.append((agent, value))
    )
    camps = {"wolf": "wolves", "wolf_king": "wolves", "seer": "good"}
    output = {"winner": "good", "rounds": 3, "said": [], "camps": camps}
    task = agl.Task(id="1", input={"seed": 1, "camp": "both"})
    assert program.training.reward(task, output, attempt_of([])) == 0.0
    assert given == [("wolf", 0.0), ("wolf_king", 0.0), ("seer", 1.0)]


def test_aliases_are_camps_or_roles_and_set_when_the_cards_are_dealt(program, monkeypatch):
    known = {}
    monkeypatch.setattr(agl, "alias", known.__setitem__)
    roles = {1: program.scripted.Role.WOLF_KING, 2: program.scripted.Role.SEER}
    for settings, expected in [
        ({"camp": "wolves"}, {"1号": "wolves"}),
        ({"camp": "good", "alias": "role"}, {"2号": "seer"}),
        ({"camp": "both"}, {"1号": "wolves", "2号": "good"}),
        ({"camp": "wolves", "others": "agents"}, {"1号": "wolves", "2号": "good"}),
    ]:
        known.clear()
        program.training.Judged(agl.Task(id="1", input=settings)).on_deal(roles)
        assert known == expected


@pytest.mark.parametrize(
    ("text", "form", "chinese"),
    [
        ("我是好人。", "speech", True),
        ("I am good.", "speech", False),
        ("12345", "speech", False),
        ("", "speech", True),
        ("杀3号。\n是", "speech_yes_no", True),
        ("Kill 3\n是", "speech_yes_no", False),
        ("3", "seat", True),
        ("because of his vote\n3", "seat", False),
    ],
)
def test_the_language_of_answers(program, text, form, chinese):
    judged = program.training.Judged(agl.Task(id="1", input={"camp": "wolves"}))
    request = SimpleNamespace(seat=3, role=program.scripted.Role.WOLF, phase="x", form=form)
    judged.on_answer(request, text, "")
    assert [said.chinese for said in judged.said] == [chinese]


def test_the_tiny_model_learns_to_name_both_seats_of_the_prompt(program):
    making = program.making
    tokenizer = making.AutoTokenizer.from_pretrained(FOLDER / "model")
    for number in range(100):
        request, answer = making.drill(random.Random(number))
        prompt = program.prompts.user(request, program.prompts.BRIEF)
        given = re.findall(r"(?:同伴|好人)\d+", prompt)
        assert [int(each[2:]) for each in given] == program.prompts.pair(request)
        (odds,) = making._row(tokenizer, request, answer).odds.values()
        assert list(map(tokenizer.decode, odds)) == given
        assert sum(odds.values()) == pytest.approx(1)
        assert any(each in answer for each in given)


def test_the_model_is_made_by_its_script(program, tmp_path):
    program.making.make(tmp_path, steps=2, games=2)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == "qwen2"
    assert (tmp_path / "model.safetensors").stat().st_size < 8_000_000


def train(tmp_path, *changes):
    settings = [part for change in changes for part in ("--set", change)]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "agl_core.cli",
            "train",
            str(FOLDER / "run.toml"),
            "--json",
            str(tmp_path / "figures.json"),
            "--set",
            f"directory={tmp_path / 'runs'}",
            "--set",
            "name=run",
            "--set",
            "tasks.val=null",
            *settings,
        ],
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_steps_train_the_wolves_alone(tmp_path):
    done = train(tmp_path, "train.steps=2", "train.tasks_per_step=1", "algorithm.group_size=4")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert len(report["steps"]) == 2
    assert report["calls"] > 100
    (trained,) = [one for one in report["policies"].values() if one["trainable"]]
    assert trained["agents"] == ["wolves"]
    assert trained["sha256_before"] != trained["sha256_after"]


def test_an_opponent_plays_some_seats_and_the_other_wolves_are_trained(tmp_path):
    small = ("train.steps=1", "train.tasks_per_step=1", "algorithm.group_size=8")
    done = train(tmp_path, "policies.opponent.share=0.3", *small)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    (trained,) = [one for one in report["policies"].values() if one["trainable"]]
    assert trained["sha256_before"] != trained["sha256_after"]
    assert 0 < report["lost"]["calls_of_opponents"] < report["calls"]


def test_a_role_that_no_seat_has_is_an_error_that_lists_the_aliases(tmp_path):
    small = ("train.steps=1", "train.tasks_per_step=1", "algorithm.group_size=2")
    done = train(tmp_path, 'agents=["dragon"]', *small)
    assert done.returncode != 0
    assert "'dragon' was not seen" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "shares",
    [
        ("policies.opponent.share=1.2",),
        ("policies.opponent.share=0.6", "policies.second.share=0.6"),
        ('policies.opponent={share=0.2,agents=["good"]}',),
    ],
)
def test_shares_that_do_not_fit_are_refused_before_a_game(tmp_path, shares):
    done = train(tmp_path, *shares)
    assert done.returncode != 0
    assert "share" in done.stdout + done.stderr
    assert "running the agents" not in done.stdout + done.stderr


ODD_AGENT = """
import asyncio
import sys

sys.path.insert(0, {folder!r})
import run_agent as example
from run_agent import reward, run_agent, train_tasks

import agl_core as agl
from werewolf.prompts import name


class Odd(example.Judged):
    def on_deal(self, roles):
        super().on_deal(roles)
        super().on_deal(roles)

    def on_answer(self, request, text, problem):
        super().on_answer(request, text, problem)
        {then}


class Silent:
    async def answer(self, request):
        await asyncio.Event().wait()


example.Judged = Odd
{more}
"""


def train_odd(tmp_path, then="pass", more="", timeout_s=300):
    """One step of a program that is not as it should be."""
    agent = tmp_path / "odd.py"
    code = ODD_AGENT.format(folder=str(FOLDER), then=then, more=more)
    agent.write_text(code, encoding="utf-8")
    small = ("train.steps=1", "train.tasks_per_step=1", "algorithm.group_size=2")
    done = train(tmp_path, f"agent={agent}:run_agent", *small, f"rollout.timeout_s={timeout_s}")
    return done.returncode, done.stdout + done.stderr


def test_the_same_alias_may_be_given_twice(tmp_path):
    code, said = train_odd(tmp_path)
    assert code == 0, said


def test_another_alias_after_the_first_call_fails_the_game(tmp_path):
    code, said = train_odd(tmp_path, 'agl.alias(name(request.seat), "villager")')
    assert code != 0
    assert "ConfigError" in said
    assert "villager" in said


def test_a_seat_that_never_answers_ends_the_game_at_its_deadline(tmp_path):
    code, said = train_odd(tmp_path, more="example.seat = lambda style: Silent()", timeout_s=1)
    assert code != 0
    assert "deadline" in said

"""A prompt that chooses meeting rooms, tuned by textual gradients and by GEPA."""

from __future__ import annotations

import importlib
import json
import random
import sys

import pytest
from agl_testing.fake_openai import FakeOpenAI, FakeReply

from agl_core.config.loader import load_config
from tests.programs.running import ROOT, imported, started

FOLDER = ROOT / "examples" / "15_rooms"
OPTIMIZERS = ("apo", "gepa")
MODULES = ("program", "office", "critic", "run_agent", "make_model", "check")
TEXT = "You choose a room for the {team} team. Call find_rooms and answer with a name."
RULES = {
    "time": "Always state the hour.",
    "people": "State how many come.",
    "needs": "Mention the equipment.",
}


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


def choose(load, monkeypatch, *replies):
    """Choose a room; return the answer and the messages of the last request to the model."""
    program = load("program")
    given = iter(replies)
    with FakeOpenAI(lambda body: next(given)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        answer = program.choose("monday at noon, two people, with a screen.", "sales")
        program.client().close()
    return answer, [call.body for call in server.log]


def looks_up(arguments, name="find_rooms"):
    return FakeReply(tool_calls=[{"name": name, "arguments": arguments}])


@pytest.mark.parametrize("name", ["program.py", "office.py"])
def test_the_program_does_not_know_that_its_prompt_is_tuned(name):
    assert not {each for each in imported(FOLDER / name) if each.startswith("agl")}


def test_the_tool_is_called_and_its_rooms_are_read(load, monkeypatch):
    day = load("office").find_rooms(day="monday")
    answer, asked = choose(load, monkeypatch, looks_up({"day": "monday"}), " birch ")
    assert answer == "birch"
    assert asked[0]["messages"][0]["content"] == TEXT.format(team="sales")
    assert asked[1]["messages"][-1]["content"] == ", ".join(day)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (looks_up({"day": "someday"}), "error: unknown day 'someday'"),
        (looks_up({"day": "monday", "time": "25:00"}), "error: unknown time '25:00'"),
        (looks_up({"day": "monday", "needs": ["screen"]}), "error: unknown needs ['screen']"),
        (looks_up({"day": "monday", "room": "attic"}), "error: unknown argument 'room'"),
        (looks_up({}), "error: the day is missing"),
        (looks_up("{"), "error: the arguments are not a JSON object"),
        (looks_up("[]"), "error: the arguments are not a JSON object"),
        (looks_up({"day": "monday"}, name="book"), "error: unknown tool 'book'"),
    ],
)
def test_a_wrong_call_of_the_tool_is_answered_with_what_is_wrong(load, monkeypatch, reply, said):
    answer, asked = choose(load, monkeypatch, reply, "amber")
    assert asked[1]["messages"][-1]["content"].startswith(said)
    assert answer == "amber"


def test_a_model_that_calls_the_tool_for_ever_has_no_answer(load, monkeypatch):
    answer, asked = choose(load, monkeypatch, *[looks_up({"day": "monday"})] * 4)
    assert (answer, len(asked)) == ("", 4)


def test_a_model_that_says_nothing_has_no_answer(load, monkeypatch):
    assert choose(load, monkeypatch, "")[0] == ""


def test_an_answer_is_graded_by_whether_the_room_fits_and_is_the_smallest(load):
    office, tasks = load("office"), load("run_agent").held_out_tasks()
    meetings = [office.Meeting(**task.metadata) for task in tasks]
    meeting = next(each for each in meetings if len(each.fitting) > 1)
    small, large, *_ = meeting.fitting
    wrong = next(room for room in office.SEATS if room not in meeting.fitting)
    grades = [office.grade(meeting, f" {answer.title()}\n") for answer in (small, large, wrong)]
    assert [value for value, _ in grades] == [1.0, 0.5, 0.0]
    assert grades[1][1] == f"{large} fits, but {small} is smaller"
    assert any(said in grades[2][1] for said in ("is booked", "too few seats", "has no"))
    for answer in ("", "attic", f"{small} or {large}", "没有", "none"):
        assert office.grade(meeting, answer)[0] == 0.0


def test_where_no_room_fits_only_none_is_right(load):
    office, tasks = load("office"), load("run_agent").held_out_tasks()
    meeting = next(
        each for each in (office.Meeting(**t.metadata) for t in tasks) if not each.fitting
    )
    assert office.grade(meeting, "none") == (1.0, "")
    value, why = office.grade(meeting, "grove")
    assert (value, why) == (0.0, "no room fits, but the answer was grove")


def test_the_gpu_file_differs_in_models_alone():
    laptop, gpu = (load_config(FOLDER / name) for name in ("run.toml", "gpu.toml"))
    for name in ("agent", "tasks", "rewards", "prompts", "phases"):
        assert getattr(laptop, name) == getattr(gpu, name)
    for optimizer in OPTIMIZERS:
        assert [each.optimizers[optimizer]["editor"]["calls"] for each in (laptop, gpu)] == [96, 96]


def test_the_three_sets_of_tasks_share_no_meeting(load):
    tasks = load("run_agent")
    sets = [tasks.train_tasks(), tasks.val_tasks(), tasks.held_out_tasks()]
    assert [len(each) for each in sets] == [120, 60, 200]
    meetings = {json.dumps(task.metadata) for each in sets for task in each}
    assert len(meetings) == 380
    assert all(task.expected in (*load("office").SEATS, "none") for each in sets for task in each)
    assert tasks.train_tasks() == sets[0]


def test_the_critic_names_what_reasons_complain_of_most_often(load):
    critic = load("critic")
    booked = "Task: a\n\nWhy: elm is booked on monday at noon"
    lacks = "Task: b\n\nWhy: elm has no screen"
    asked_too_little = "Task: c\n\n[tool] elm\n\nWhy: no room fits, but the answer was elm"
    invented = "Task: c\n\n[tool] no rooms\n\nWhy: no room fits, but the answer was elm"
    assert critic.faults(f"{lacks}\n{booked}\n{lacks}") == ["has no", "is booked on"]
    assert critic.faults(asked_too_little) == []
    assert critic.faults(invented) == ["no room fits"]
    assert critic.review("Task: a\n\nScore: 1") == "No fault was found."


def test_the_editor_adds_one_sentence_for_a_fault_and_keeps_the_rest(load):
    critic = load("critic")
    text = critic.rewritten(TEXT, ["is booked on"], random.Random(0))
    added = text.removeprefix(f"{TEXT} ")
    assert added in critic.WORDINGS["is booked on"]
    other = critic.rewritten(text, ["is booked on"], random.Random(0)).removeprefix(f"{TEXT} ")
    assert other != added
    assert other in critic.WORDINGS["is booked on"]
    assert critic.rewritten(text, [], random.Random(0)) == TEXT
    assert critic.rewritten(TEXT, [], random.Random(0)) == TEXT


def test_one_wording_against_each_fault_is_obeyed_in_the_training_data(load):
    obeyed = set(load("make_model").OBEYED.values())
    for wordings in load("critic").WORDINGS.values():
        assert len(obeyed.intersection(wordings)) == 1


@pytest.mark.parametrize("rule", RULES)
def test_the_shipped_model_obeys_a_sentence(load, rule):
    check, sentence = load("check"), load("make_model").OBEYED[rule]
    check.torch.manual_seed(0)
    without, stated = (
        check.share(FOLDER / "model", rule, [text], tasks=30) for text in ("", sentence)
    )
    assert without < 0.4
    assert stated > 0.8


def test_what_is_no_call_obeys_nothing(load):
    check = load("check")
    assert check.arguments(load("make_model").call({"day": "monday"})) == {"day": "monday"}
    for text in ("", "amber", "[]", "<tool_call>", load("make_model").call([1])):
        assert check.arguments(text) == {}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_shipped_model_is_tuned_by_the_script(optimizer, tmp_path):
    done = started(
        FOLDER, tmp_path, f"phases.0.optimizer={optimizer}", "phases.0.rollouts=260", "seed=2"
    )
    report = report_of(done, tmp_path)
    assert report["rollouts"] <= 260
    assert 0 < report["editor_calls"] <= 96
    prompt = report["prompts"]["selector"]
    assert prompt["text"].startswith(TEXT)
    assert prompt["before"]["mean"] <= prompt["after"]["mean"]


def selector(body):
    """Play the agent as a model that gives the tool what its prompt asks for."""
    system, request, *later = [message.get("content") for message in body["messages"]]
    if later:
        found = later[-1].split(", ")
        return "none" if later[-1] == "no rooms" else found[0]
    words = request.lower().replace(".", "").replace(",", "").split()
    properties = body["tools"][0]["function"]["parameters"]["properties"]
    given = {
        name: next(word for word in words if word in values["enum"])
        for name, values in properties.items()
    }
    wanted = ("day", *(name for name, rule in RULES.items() if rule in system))
    return looks_up({name: given[name] for name in wanted})


def tune(optimizer, directory, *, play=selector, edit=None, editor=None, rollouts=200):
    """Tune the prompt of a scripted model, with an editor behind HTTP."""
    with FakeOpenAI(play) as model, FakeOpenAI(edit) as far:
        address = editor or far.base_url
        return started(
            FOLDER,
            directory,
            "model=fake-model",
            f'engine={{"name": "http", "base_url": "{model.base_url}"}}',
            f"phases.0.optimizer={optimizer}",
            f"phases.0.rollouts={rollouts}",
            "optimizers.apo.rounds=2",
            f'optimizers.{optimizer}.editor={{"base_url": "{address}", "model": "fake-model"}}',
        )


def report_of(done, directory):
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((directory / "figures.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_critic_behind_http_finds_sentences_that_help(load, optimizer, tmp_path):
    critic = load("critic")
    done = tune(optimizer, tmp_path, edit=lambda body: critic.edit(body["messages"]), rollouts=700)
    report = report_of(done, tmp_path)
    prompt = report["prompts"]["selector"]
    assert prompt["text"].startswith(TEXT)
    assert any(rule in prompt["text"] for rule in RULES.values())
    assert prompt["before"]["mean"] < prompt["after"]["mean"]
    assert report["rollouts"] <= 700
    assert report["editor_calls"] > 0
    assert "prompts_not_found" not in report["lost"]


BAD = {
    "nonsense": lambda body: "qwerty",
    "nothing": lambda body: "",
    "another language": lambda body: "```\n请选择会议室。\n```",
    "lost placeholder": lambda body: f"```\n{TEXT.replace('{team}', 'best')}\n```",
    "invented placeholder": lambda body: f"```\n{TEXT} {{day}}\n```",
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", BAD)
def test_what_a_bad_editor_writes_never_runs(name, optimizer, tmp_path):
    report = report_of(tune(optimizer, tmp_path, edit=BAD[name]), tmp_path)
    prompt = report["prompts"]["selector"]
    assert prompt["text"] == TEXT
    assert prompt["before"] == prompt["after"]
    cause = "empty" if name in ("nonsense", "nothing") else "placeholders"
    refused = report["lost"].get(f"prompts_refused_{cause}", 0)
    # apo asks no editor where the critic says nothing.
    assert refused or (optimizer, name) == ("apo", "nothing")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_editor_that_is_down_fails_the_run(optimizer, tmp_path):
    with FakeOpenAI() as gone:
        address = gone.base_url
    done = tune(optimizer, tmp_path, editor=address)
    assert done.returncode != 0
    assert "No call of an editor model was answered" in done.stdout + done.stderr


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_model_that_says_nothing_leaves_the_prompt(load, optimizer, tmp_path):
    critic = load("critic")
    done = tune(
        optimizer, tmp_path, play=lambda body: "", edit=lambda body: critic.edit(body["messages"])
    )
    report = report_of(done, tmp_path)
    assert report["prompts"]["selector"]["text"] == TEXT
    assert report["prompts"]["selector"]["after"]["mean"] == 0.0
    assert report["lost"]["prompts_scores_equal"] == 1

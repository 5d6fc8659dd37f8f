"""Breaks in conversations: whether they are found, what they cost, and why they happened."""

import json

import pytest
from agl_doctor._continuity import cause
from agl_doctor._prefixes import _FIX
from agl_testing.fake_openai import FakeReply

import agl_core as agl
from agl_core.types import Choice, ModelCall
from agl_core.types.run import MEANING
from tests.plugins.doctor.conftest import ask, only, writer

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "How much is the lamp?"}
MORE = {"role": "user", "content": "And the mug?"}


def talk(change=None, *, first=(SYSTEM, USER), **body):
    """An agent of two turns whose second prompt is what `change` makes of history and answer."""

    async def agent(task: agl.Task) -> str:
        with agl.agent_scope("writer"):
            history = [dict(message) for message in first]
            answer = await ask(history, **body)
            sent = {key: value for key, value in answer.items() if value is not None}
            following = [*history, sent, MORE]
            following = change(following) if change else following
            if isinstance(following, tuple):
                following, more = following
                return (await ask(following, **{**body, **more}))["content"]
            return (await ask(following, **body))["content"]

    return agent


def test_a_conversation_that_is_continued_has_no_break(clinic) -> None:
    diagnosis = clinic.diagnose(talk())
    found = only(diagnosis, "prefix.continue")
    assert (found.severity, found.figures) == ("ok", {"later_calls": 4, "breaks": 0, "tokens": 0})
    assert not [f for f in diagnosis.findings if f.check == "prefix.break"]


def test_one_call_per_run_has_nothing_to_continue(clinic) -> None:
    found = clinic.find(writer, "prefix.continue")
    assert (found.severity, found.figures["later_calls"]) == ("ok", 0)


def test_the_cost_is_what_is_not_shared(clinic) -> None:
    def shouted(messages):
        messages[1]["content"] = "How much is the LAMP?"
        return messages

    diagnosis = clinic.diagnose(talk(shouted))
    found = only(diagnosis, "prefix.break")
    kept = len("<system>Be brief.") + 1 + len("<user>How much is the ")
    whole = len("<system>Be brief.") + 1 + len("<user>How much is the lamp?") + 1
    whole += len("<assistant>How much is the lamp?") + 1
    assert found.figures == {
        "agent": "writer",
        "cause": "edited",
        "calls": 4,
        "tokens": 4 * (whole - kept),
    }
    assert "'LAMP?<as" in found.measured
    assert only(diagnosis, "prefix.continue").figures["breaks"] == 4


def test_without_text_the_place_is_still_told(clinic) -> None:
    clinic.options["detokenize"] = False
    found = clinic.find(talk(lambda m: [m[0], m[3]]), "prefix.break")
    assert "differs from token" in found.measured


def test_parallel_calls_and_repeated_prompts_break_nothing(clinic) -> None:
    async def again(task: agl.Task) -> str:
        with agl.agent_scope("writer"):
            await ask([USER])
            return (await ask([USER]))["content"]

    assert clinic.find(again, "prefix.continue").figures["breaks"] == 0


def test_runs_of_one_agent_are_distinguished(clinic) -> None:
    async def twice(task: agl.Task) -> str:
        await writer(task)
        with agl.agent_scope("writer"):
            return (await ask([MORE]))["content"]

    assert clinic.find(twice, "prefix.continue").figures["later_calls"] == 0


def test_frozen_agents_are_not_looked_at(clinic) -> None:
    async def frozen(task: agl.Task) -> str:
        with agl.agent_scope("planner"):
            await ask([USER])
            await ask([MORE])
        return await writer(task)

    assert clinic.find(frozen, "prefix.continue").figures["later_calls"] == 0


def test_another_conversation_is_no_warning(clinic) -> None:
    diagnosis = clinic.diagnose(talk(lambda messages: [MORE], first=[USER]))
    assert only(diagnosis, "prefix.break").severity == "ok"
    assert only(diagnosis, "prefix.break").figures["cause"] == "other"
    assert only(diagnosis, "prefix.continue").severity == "ok"


def stamped(messages):
    messages[0]["content"] = "Be brief. It is noon."
    return messages


def stripped(messages):
    messages[2]["content"] = messages[2]["content"].strip()
    return messages


TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {}}}


@pytest.mark.parametrize(
    ("change", "reply", "expected"),
    [
        (stamped, "ok", "system"),
        (lambda m: (m, {"tools": [TOOL]}), "ok", "tools"),
        (stripped, "  so  ", "whitespace"),
        (lambda m: [m[0], m[3]], "ok", "other"),
        (lambda m: [m[0], m[1], m[3]], "ok", "answer"),
        (lambda m: [*m[:2], {**m[2], "content": "no"}, m[3]], "ok", "edited"),
        (lambda m: [*m[:2], {**m[2], "content": "so"}, m[3]], "<think>hm</think>so", "thinking"),
        (
            lambda m: [*m[:2], {"role": "assistant", "content": m[2]["content"]}, m[3]],
            FakeReply(text="so", reasoning="hm"),
            "thinking",
        ),
    ],
)
def test_the_cause_is_named(clinic, change, reply, expected) -> None:
    clinic.script = lambda body: reply
    found = clinic.find(talk(change), "prefix.break")
    assert found.figures["cause"] == expected
    assert found.measured.startswith(f"writer: {MEANING[expected]}")


def test_arguments_that_are_written_anew_are_named(clinic) -> None:
    def rewritten(messages):
        function = messages[2]["tool_calls"][0]["function"]
        function["arguments"] = json.dumps(json.loads(function["arguments"]), indent=1)
        return [*messages[:3], {"role": "tool", "content": "34", "tool_call_id": "c"}]

    clinic.script = lambda body: FakeReply(
        tool_calls=[{"name": "lookup", "arguments": '{"item":"lamp"}', "id": "c"}]
    )
    found = clinic.find(talk(rewritten, tools=[TOOL]), "prefix.break")
    assert found.figures["cause"] == "tool_calls"
    assert "letter for letter" in found.fix


def test_a_new_spelling_of_the_same_text_is_named(clinic) -> None:
    clinic.options["stable"] = False
    found = clinic.find(talk(), "prefix.break")
    assert found.figures["cause"] in ("template", "tokens")


# Longer histories, told by their messages alone.

FIRST, SECOND = {"role": "assistant", "content": "34."}, {"role": "assistant", "content": "12."}
LAST = {"role": "user", "content": "Thanks!"}
SUMMARY = {"role": "user", "content": "The customer asked for prices."}
LONG = [SYSTEM, USER, FIRST, MORE]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


def model_call(messages, **fields) -> ModelCall:
    return ModelCall(id="c", rollout_id="r", attempt_id="a", agent="w", messages=messages, **fields)


def why(old, new, *, choice=None, shared=5, prompt=10) -> str:
    before = model_call(old, prompt_token_ids=list(range(prompt)))
    return cause(before, choice or Choice(text="12."), model_call(new), shared=shared)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (LONG, [SYSTEM, MORE, SECOND, LAST], "trimmed"),
        (LONG, [SYSTEM], "trimmed"),
        (LONG, [SYSTEM, SUMMARY, MORE, LAST], "summary"),
        (LONG, [SYSTEM, SUMMARY, LAST], "summary"),
        (LONG, [SYSTEM, SUMMARY, FIRST, MORE, SECOND, LAST], "edited"),
        (LONG, [SYSTEM, USER, {**FIRST, "content": "34. "}, MORE, SECOND, LAST], "whitespace"),
        (LONG, [{**SYSTEM, "content": "Be  brief."}, *LONG[1:], SECOND, LAST], "whitespace"),
        (
            [SYSTEM, USER, {**FIRST, "content": "<think>hm</think>34."}, MORE],
            [*LONG, SECOND, LAST],
            "thinking",
        ),
        (
            [USER, {"role": "assistant", "tool_calls": [CALL]}, MORE],
            [USER, {"role": "assistant", "tool_calls": [{**CALL, "id": "d"}]}, MORE, SECOND, LAST],
            "tool_calls",
        ),
        (
            [USER, {"role": "assistant", "content": "I look.", "tool_calls": [CALL]}, MORE],
            [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                MORE,
                SECOND,
                LAST,
            ],
            "text",
        ),
        ([USER], [LAST], "other"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            [{"role": "user", "content": "hi"}, SECOND, LAST],
            "template",
        ),
    ],
)
def test_edited_histories_are_distinguished(old, new, expected) -> None:
    assert why(old, new) == expected


@pytest.mark.parametrize(
    ("old", "choice", "sent", "shared", "expected"),
    [
        # The template strips thinking of earlier turns when a new one comes.
        (
            [USER, {**FIRST, "content": "<think>a</think>34."}, MORE],
            Choice(text="12."),
            SECOND,
            5,
            "thinking",
        ),
        ([USER], Choice(text=" 12."), {**SECOND, "content": " 12."}, 12, "whitespace"),
        ([USER], Choice(text="12."), SECOND, 12, "tokens"),
        (
            [USER],
            Choice(tool_calls=[CALL]),
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            12,
            "tool_calls",
        ),
    ],
)
def test_messages_that_came_back_whole_point_to_the_template(
    old, choice, sent, shared, expected
) -> None:
    assert why(old, [*old, sent, LAST], choice=choice, shared=shared) == expected


@pytest.mark.parametrize(
    ("text", "content", "expected"),
    [
        ("I look.", None, "text"),
        ("<think>hm</think>", None, "thinking"),
        ("[T]hm[/T]I look.", "I look.", "thinking"),
        ("I look.", "I looked.", "edited"),
    ],
)
def test_what_is_lost_beside_tool_calls_is_told(text, content, expected) -> None:
    sent = {"role": "assistant", "content": content, "tool_calls": [CALL]}
    before = model_call([USER], prompt_token_ids=[1], thinking_tags=("think", "[T] [/T]"))
    choice = Choice(text=text, tool_calls=[CALL])
    assert cause(before, choice, model_call([USER, sent, LAST]), shared=1) == expected


def test_every_cause_has_its_words_and_its_fix() -> None:
    assert MEANING.keys() == _FIX.keys()
    assert all(MEANING.values())
    assert all(_FIX.values())

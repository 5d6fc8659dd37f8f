"""Lengths: the context, and answers that are cut."""

from types import SimpleNamespace

from agl_doctor._calls import OwnedCall
from agl_doctor._lengths import lengths

import agl_core as agl
from agl_core.types import ModelCall
from tests.plugins.doctor.conftest import ask, only, writer


def contexts(diagnosis) -> dict:
    return {f.figures["policy"]: f for f in diagnosis.findings if f.check == "lengths.context"}


def asking(text: str = "write", **body):
    async def agent(task: agl.Task) -> str:
        with agl.agent_scope("writer"):
            return (await ask(text, **body))["content"]

    return agent


def test_the_longest_call_is_compared_with_the_context(clinic) -> None:
    found = contexts(clinic.diagnose(asking("12345")))["trained"]
    # <user> 12345 EOS <assistant>, and the echo with its EOS.
    assert found.figures["longest"] == 6 + 5 + 1 + 11 + 5 + 1
    assert (found.severity, found.figures["context"]) == ("ok", 10_000)


def test_a_tight_context_is_a_warning(clinic) -> None:
    clinic.options["max_model_len"] = 32
    found = contexts(clinic.diagnose(asking("12345")))["trained"]
    assert found.severity == "warning"
    assert "max_model_len" in found.fix


def test_prompts_that_leave_too_little_room_are_counted(clinic) -> None:
    clinic.options["max_model_len"] = 200
    found = contexts(clinic.diagnose(asking("12345", max_tokens=190)))["trained"]
    assert (found.severity, found.figures["cramped"]) == ("warning", 4)


def test_an_unknown_context_is_not_called_ok(clinic) -> None:
    clinic.options["models"] = ("one", "two")
    found = contexts(clinic.diagnose(writer))["trained"]
    assert (found.severity, found.figures["context"]) == ("not checked", None)
    assert found.figures["longest"] > 0


def test_lengths_of_frozen_agents_come_from_usage(clinic) -> None:
    async def two(task: agl.Task) -> str:
        with agl.agent_scope("planner"):
            await ask("12345")
        return await writer(task)

    found = contexts(clinic.diagnose(two))["frozen"]
    assert (found.severity, found.figures["longest"]) == ("ok", 29)


def test_a_prompt_that_does_not_fit_is_an_error(clinic) -> None:
    clinic.options["max_model_len"] = 60
    diagnosis = clinic.diagnose(asking("x" * 80))
    found = only(diagnosis, "lengths.overflow")
    assert (found.severity, found.figures) == ("error", {"attempts": 4})


def test_cut_answers_are_counted_with_their_share(clinic) -> None:
    async def one_in_two(task: agl.Task) -> str:
        with agl.agent_scope("writer"):
            await ask("a")
            return (await ask("a long answer", max_tokens=4))["content"]

    found = clinic.find(one_in_two, "lengths.cut")
    assert found.severity == "warning"
    assert found.figures == {"agent": "writer", "answers": 8, "cut": 4, "share": 0.5}
    assert "max_tokens 4" in found.measured


def test_whole_answers_are_ok(clinic) -> None:
    assert clinic.find(writer, "lengths.cut").severity == "ok"


async def test_a_call_that_no_policy_answered_has_no_context_to_fit() -> None:
    call = ModelCall(id="call", rollout_id="ro", attempt_id="at", agent="writer")
    owned = OwnedCall(
        call=call,
        agent="writer",
        agent_run_id="",
        in_tool=False,
        prompt_tokens=None,
        answer_tokens=None,
    )
    trial = SimpleNamespace(calls=[owned], records=[])
    assert await lengths(trial, {}) == []

"""Rewards: that they arrive, and that groups have something to teach."""

import math

import agl_core as agl
from tests.plugins.doctor.conftest import ask, only, writer


def gives(clinic, reward) -> None:
    clinic.inputs["reward"] = reward


def test_channels_are_told(clinic) -> None:
    gives(clinic, lambda task, output, attempt: {"a": 1.0, "b": attempt.rollout.metadata["sample"]})
    found = clinic.find(writer, "rewards.arrive")
    assert found.severity == "ok"
    assert found.figures["channels"] == {
        "a": {"min": 1.0, "max": 1.0, "mean": 1.0},
        "b": {"min": 0.0, "max": 1.0, "mean": 0.5},
    }


def test_a_reward_that_is_no_finite_number_is_an_error(clinic) -> None:
    gives(clinic, lambda task, output, attempt: math.nan)
    diagnosis = clinic.diagnose(writer)
    found = only(diagnosis, "rewards.arrive")
    assert (found.severity, found.figures) == ("error", {"unusable": 4, "attempts": 4})
    assert "nan" in found.measured


def test_no_reward_is_an_error(clinic) -> None:
    clinic.inputs["reward"] = None
    found = clinic.find(writer, "rewards.arrive")
    assert (found.severity, found.figures["unusable"]) == ("error", 4)


def test_groups_that_differ_have_a_signal(clinic) -> None:
    found = clinic.find(writer, "rewards.vary")
    assert found.severity == "ok"
    assert found.measured.startswith("0 of 2 groups have no signal")


def test_no_signal_in_any_group_is_an_error(clinic) -> None:
    gives(clinic, lambda task, output, attempt: 1.0)
    found = clinic.find(writer, "rewards.vary")
    assert found.severity == "error"
    assert found.figures == {"groups": 2, "without_signal": 2, "alike": 0, "alone": 0}
    assert "partial credit" in found.fix


def test_the_most_frequent_reason_is_told(clinic) -> None:
    def none(task, output, attempt) -> agl.Score:
        seen.append(task)
        return agl.Score(0.0, "no\nprice" if len(seen) > 1 else "x" * 500)

    seen: list[agl.Task] = []
    gives(clinic, none)
    found = clinic.find(writer, "rewards.vary")
    assert found.measured.endswith(". The most frequent reason, 3 of 4: no price")


def test_one_group_of_several_without_a_signal_is_told_with_its_number(clinic) -> None:
    gives(clinic, lambda task, output, attempt: attempt.rollout.metadata["sample"] * task.input)
    found = clinic.find(writer, "rewards.vary", tasks=4)
    assert (found.severity, found.figures["without_signal"]) == ("ok", 1)


def test_most_groups_without_a_signal_are_a_warning(clinic) -> None:
    def rare(task, output, attempt) -> float:
        return float(attempt.rollout.metadata["sample"] and task.input == 0)

    gives(clinic, rare)
    found = clinic.find(writer, "rewards.vary", tasks=4)
    assert (found.severity, found.figures["without_signal"]) == ("warning", 3)


def test_answers_that_are_all_the_same_are_named_as_the_cause(clinic) -> None:
    async def same(task: agl.Task) -> str:
        with agl.agent_scope("writer"):
            return (await ask("always this"))["content"]

    gives(clinic, lambda task, output, attempt: float(len(output)))
    found = clinic.find(same, "rewards.vary")
    assert (found.severity, found.figures["alike"]) == ("error", 2)
    assert "rollout.temperature" in found.fix


def test_a_group_of_which_one_attempt_is_left_is_told(clinic) -> None:
    async def half(task: agl.Task) -> str:
        if agl.current().rollout.metadata["sample"]:
            raise ValueError("broke")
        return await writer(task)

    found = clinic.find(half, "rewards.vary")
    assert (found.severity, found.figures["alone"]) == ("error", 2)


def test_the_chosen_algorithm_says_what_a_signal_is(clinic) -> None:
    gives(clinic, lambda task, output, attempt: 1.0)
    found = clinic.find(writer, "rewards.vary", algorithm__name="reinforce")
    assert (found.severity, found.figures["without_signal"]) == ("ok", 0)

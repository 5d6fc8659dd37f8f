"""The search over sets of demonstrations on toy phases."""

from __future__ import annotations

import random

import pytest
from agl_bootstrap import HEADER, BootstrapOptions
from agl_bootstrap._bootstrap import bootstrap

from agl_core.config import validate
from agl_core.errors import ConfigError
from agl_core.types import FailureKind
from tests.trainers.toy_phase import ToyPhase, tasks, tuned


def shown(text):
    """Return the ids of the tasks that a text demonstrates."""
    return [line.split()[-1] for line in text.splitlines() if line.startswith("Answer: ")]


def helped(texts, task, rng):
    """Even training tasks succeed; demonstrations of t0 and t4 help most on others."""
    del rng
    if task.id.startswith("t"):
        return float(int(task.id[1:]) % 2 == 0)
    found = shown(texts["writer"])
    return 0.2 + 0.3 * len({"t0", "t4"} & set(found)) + 0.02 * len(found)


async def search(phase, **options):
    given = {"threshold": 1.0, **options}
    return await bootstrap(BootstrapOptions(**given)).optimize(phase)


async def test_it_finds_the_demonstrations_that_help(tmp_path):
    phase = ToyPhase(tmp_path, helped)
    result = await search(phase)
    text = result.texts["writer"]
    assert text.startswith(f"Answer.\n\n{HEADER}\n\n### Example 1\nQuestion: question t")
    assert {"t0", "t4"} <= set(shown(text))
    assert set(shown(text)) <= {f"t{i}" for i in range(0, 12, 2)}
    assert len(shown(text)) <= 4
    assert result.after.mean > result.before.mean == pytest.approx(0.2)
    assert result.calls == {}


@pytest.mark.parametrize("rollouts", range(36, 250, 17))
async def test_no_budget_is_exceeded(tmp_path, rollouts):
    phase = ToyPhase(tmp_path, helped, rollouts=rollouts)
    result = await search(phase)
    assert len(phase.ran) == result.rollouts <= rollouts
    assert result.after.mean > 0.2


async def test_answers_alone_are_demonstrated_without_headings(tmp_path):
    def copied(texts, task, rng):
        """Training tasks succeed; on others, headings and questions mislead."""
        if task.id.startswith("t"):
            return 1.0
        text = texts["writer"]
        return 0.2 if "Question:" in text or "###" in text else 0.2 + 0.1 * text.count("answers t")

    assert HEADER not in (await search(ToyPhase(tmp_path / "1", copied))).texts["writer"]
    text = (await search(ToyPhase(tmp_path / "2", copied), form="answer")).texts["writer"]
    demonstrated = text.removeprefix(f"Answer.\n\n{HEADER}\n\n").split("\n")
    assert len(demonstrated) == len(set(demonstrated)) == 4
    assert all(line.startswith("writer answers t") for line in demonstrated)


async def test_a_budget_below_one_set_is_refused(tmp_path):
    phase = ToyPhase(tmp_path, helped, rollouts=35)
    with pytest.raises(ConfigError, match="at least 36 rollouts"):
        await search(phase)
    assert not phase.ran


async def test_sets_are_compared_in_one_evaluation(tmp_path):
    phase = ToyPhase(tmp_path, helped)
    await search(phase, sets=7)
    assert [len(call) for call in phase.asked] == [16, 12, 56, 8]


async def test_no_attempt_that_reaches_the_threshold_is_a_result(tmp_path):
    phase = ToyPhase(tmp_path, lambda texts, task, rng: 0.7)
    result = await search(phase)
    assert result.texts == {"writer": "Answer."}
    assert "0 demonstrations found: 0 of 12 attempts reach the threshold 1" in result.reason
    assert "highest score 0.7" in result.reason
    assert result.before.mean == pytest.approx(0.7)


@pytest.mark.parametrize("score", [0.5, 0.999])
async def test_a_score_below_the_threshold_is_no_demonstration(tmp_path, score):
    def low(texts, task, rng):
        return score if task.id.startswith("t") else float(HEADER in texts["writer"])

    assert HEADER not in (await search(ToyPhase(tmp_path, low))).texts["writer"]


async def test_a_threshold_must_be_given():
    with pytest.raises(ConfigError, match="threshold"):
        validate(BootstrapOptions, {}, where="optimizers.bootstrap")


async def test_an_editor_is_refused():
    editor = {"base_url": "http://localhost:1/v1", "model": "x"}
    with pytest.raises(ConfigError, match="asks no editor model"):
        validate(BootstrapOptions, {"threshold": 1, "editor": editor}, where="optimizers.bootstrap")


async def test_a_failed_attempt_is_no_demonstration_whatever_its_penalty(tmp_path):
    def failing(texts, task, rng):
        return FailureKind.AGENT if task.id.startswith("t") else 0.5

    phase = ToyPhase(tmp_path, failing, penalty=5.0)
    assert "0 demonstrations found" in (await search(phase)).reason


async def test_max_demos_0_adds_none_and_runs_nothing_for_them(tmp_path):
    phase = ToyPhase(tmp_path, helped)
    result = await search(phase, max_demos=0)
    assert result.texts == {"writer": "Answer."}
    assert result.reason.startswith("max_demos is 0: no demonstrations are added")
    assert len(phase.ran) == 16


async def test_validation_tasks_are_never_demonstrated(tmp_path):
    def leaks(texts, task, rng):
        return 1.0 if task.id in shown(texts["writer"]) or task.id.startswith("t") else 0.1

    train = tasks("t", 6) + tasks("v", 10)
    phase = ToyPhase(tmp_path, leaks, train=train)
    await search(phase)
    demonstrated = {id_ for text, _ in phase.evaluated("v") for id_ in shown(text)}
    assert demonstrated
    assert all(id_.startswith("t") for id_ in demonstrated)


async def test_a_validation_task_under_another_id_is_not_demonstrated(tmp_path):
    val = tasks("v", 10)
    train = [type(val[0])(id=f"t{i}", input=each.input) for i, each in enumerate(val[:4])]
    phase = ToyPhase(tmp_path, helped, train=[*train, *tasks("t9", 3)], val=val)
    await search(phase)
    ran = {each.task.id for call in phase.asked for each in call if each.task.id.startswith("t")}
    assert ran == {"t90", "t91", "t92"}


async def test_training_tasks_that_all_validate_are_refused(tmp_path):
    val = tasks("v", 10)
    phase = ToyPhase(tmp_path, helped, train=list(val), val=val)
    with pytest.raises(
        ConfigError, match=r"all 10 training tasks are validation tasks too.*tasks\.val"
    ):
        await search(phase)
    assert not phase.ran


async def test_too_few_validation_tasks_for_the_confidence_are_refused(tmp_path):
    phase = ToyPhase(tmp_path, helped, val=tasks("v", 8))
    with pytest.raises(ConfigError, match=r"at least 9 validation tasks, of which 5 decide.* 8:"):
        await search(phase)
    assert (await search(phase, confidence=0)).after.mean > 0.2


def fixed(texts, task, rng):
    """Chance that is equal in every rollout of a text on a task, as of a model without sampling."""
    del rng
    return float(random.Random(f"{texts['writer']} {task.id}").random() < 0.5)


@pytest.mark.parametrize("noise", [lambda texts, task, rng: float(rng.random() < 0.5), fixed])
async def test_demonstrations_that_do_not_help_are_rarely_added(tmp_path, noise):
    def score(texts, task, rng):
        return 1.0 if task.id.startswith("t") else noise(texts, task, rng)

    changed = 0
    for seed in range(30):
        val = [type(each)(id=f"{each.id}.{seed}", input=each.input) for each in tasks("v", 12)]
        phase = ToyPhase(tmp_path / str(seed), score, val=val, seed=seed)
        result = await search(phase, sets=12)
        changed += HEADER in result.texts["writer"]
    assert changed <= 3


async def test_infrastructure_failures_do_not_hide_what_helps(tmp_path):
    def faulty(texts, task, rng):
        return FailureKind.ENGINE if rng.random() < 0.3 else helped(texts, task, rng)

    phase = ToyPhase(tmp_path, faulty, rollouts=600)
    result = await search(phase)

    def helpful(text):
        return len({"t0", "t4"} & set(shown(text)))

    assert helpful(result.texts["writer"]) == max(helpful(text) for text, _ in phase.evaluated())
    assert phase.losses.counts["prompts_rollouts_lost"] > 0
    assert len(phase.ran) <= phase.rollouts


async def test_equal_seeds_give_equal_runs(tmp_path):
    asked = []
    for name, seed in (("one", 0), ("two", 0), ("other", 1)):
        phase = ToyPhase(tmp_path / name, helped, seed=seed)
        await search(phase)
        asked.append(phase.asked)
    assert asked[0] == asked[1] != asked[2]


@pytest.mark.parametrize("stop", range(0, 150, 17))
async def test_a_resumed_phase_repeats_nothing(tmp_path, stop):
    whole = ToyPhase(tmp_path / "whole", helped)
    expected = await search(whole)
    finished = {}
    cut = ToyPhase(tmp_path / "cut", helped, finished=finished, stops_after=stop)
    with pytest.raises(KeyboardInterrupt):
        await search(cut)
    again = ToyPhase(tmp_path / "cut", helped, finished=finished)
    assert await search(again) == expected
    assert len(cut.ran) + len(again.ran) == len(whole.ran)


async def test_demonstrations_of_an_earlier_phase_are_replaced(tmp_path):
    first = await search(ToyPhase(tmp_path / "1", helped))
    prompts = {"writer": tuned(text=first.texts["writer"])}

    def reset(texts, task, rng):
        return (
            helped(texts, task, rng)
            if task.id.startswith("t")
            else float(texts["writer"] == "Answer.")
        )

    second = ToyPhase(tmp_path / "2", reset, prompts=prompts)
    result = await search(second)
    assert result.texts == {"writer": "Answer."}
    assert all(text.count(HEADER) <= 1 for text, _ in second.evaluated("v"))


async def test_each_prompt_gets_calls_of_its_own_agents(tmp_path):
    def score(texts, task, rng):
        if task.id.startswith("t"):
            return 1.0
        return 0.5 * (HEADER in texts["writer"]) + 0.5 * (HEADER in texts["planner"])

    prompts = {name: tuned(name, f"{name}.") for name in ("planner", "writer")}
    result = await search(ToyPhase(tmp_path, score, prompts=prompts))
    assert "Answer: planner answers t" in result.texts["planner"]
    assert "Answer: writer answers t" in result.texts["writer"]
    assert "writer answers" not in result.texts["planner"]


async def test_descriptions_of_tools_get_none(tmp_path):
    prompts = {
        "writer": tuned(),
        "lookup": tuned("lookup", "Look up.", agents=("writer",), tool="lookup"),
    }
    result = await search(ToyPhase(tmp_path, helped, prompts=prompts))
    assert result.texts["lookup"] == "Look up."
    with pytest.raises(ConfigError, match="descriptions of tools"):
        await search(ToyPhase(tmp_path / "2", helped, prompts={"lookup": prompts["lookup"]}))


async def test_the_length_of_prompts_is_limited(tmp_path):
    phase = ToyPhase(tmp_path, helped)
    await search(phase, demos_chars=150)
    assert max(len(text) for text, _ in phase.evaluated("v")) <= len("Answer.") + 150
    phase = ToyPhase(tmp_path / "2", helped)
    await search(phase, max_chars=120)
    assert max(len(text) for text, _ in phase.evaluated("v")) <= 120


async def test_demonstrations_that_are_too_long_are_counted(tmp_path):
    result = await search(ToyPhase(tmp_path, helped), demo_chars=10)
    assert "0 demonstrations found: 6 of 12 attempts reach the threshold" in result.reason
    assert "6 longer than demo_chars" in result.reason


async def test_a_placeholder_of_the_text_is_kept(tmp_path):
    prompts = {"writer": tuned(text="Answer {question}.")}
    result = await search(ToyPhase(tmp_path, helped, prompts=prompts))
    assert result.texts["writer"].startswith("Answer {question}.\n\n")
    assert HEADER in result.texts["writer"]

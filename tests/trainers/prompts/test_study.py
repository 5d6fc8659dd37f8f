"""Budget, guards and means of a study."""

from __future__ import annotations

import json
import logging

import pytest
from agl_prompts import (
    BudgetSpentError,
    CandidateRefusedError,
    PromptOptimizer,
    ProposalsRefusedError,
    RolloutsLostError,
    Study,
    StudyOptions,
    tunes,
)
from hypothesis import given
from hypothesis import strategies as st

from agl_core.errors import ConfigError
from agl_core.interfaces import TakesFilters
from agl_core.types import FailureKind, Task
from tests.trainers.prompts.fakes import TEXT, FakePhase, prompt


@pytest.fixture
async def open_study(tmp_path):
    """Return a function that opens a study over a fake phase."""
    opened = []

    def make(options=None, **fields):
        phase = FakePhase(tmp_path, **fields)
        study = Study(phase, StudyOptions(**(options or {})))
        opened.append(study)
        return study, phase

    yield make
    for study in opened:
        await study.close()


async def test_an_evaluation_beyond_the_budget_runs_nothing(open_study):
    study, phase = open_study(rollouts=7)
    await study.evaluate([(study.incumbent, study.val)], split="val")
    assert study.left == 3
    with pytest.raises(BudgetSpentError, match=r"needs 4 rollouts, and 3 of 7 are left"):
        await study.evaluate([(study.incumbent, study.val)], split="val")
    assert (study.left, len(phase.asked)) == (3, 4)


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(0, 30), st.integers(1, 3))
async def test_no_sequence_of_evaluations_exceeds_the_budget(
    tmp_path_factory, sizes, budget, samples
):
    def score(rollout):
        return FailureKind.ENGINE if sum(rollout.key.encode()) % 3 == 0 else 1.0

    phase = FakePhase(tmp_path_factory.mktemp("study"), rollouts=budget, score=score)
    study = Study(phase, StudyOptions(samples=samples))
    for size in sizes:
        try:
            await study.evaluate([(study.incumbent, study.val[:size])], split="val")
        except (BudgetSpentError, RolloutsLostError):
            continue
    await study.close()
    assert len(phase.asked) <= budget
    assert study.left == budget - len(phase.asked)


async def test_rollouts_have_own_keys_and_equal_askings_for_all_candidates(open_study):
    study, phase = open_study()
    child = study.propose({"writer": "Answer {question}."}, parent=study.incumbent)
    for _ in range(2):
        await study.evaluate([(study.incumbent, study.val), (child, study.val)], split="val")
    assert len({rollout.key for rollout in phase.asked}) == 16
    by_candidate = {}
    for rollout in phase.asked:
        by_candidate.setdefault(rollout.candidate["writer"], []).append(
            (rollout.task.id, rollout.asking)
        )
    assert by_candidate[TEXT] == by_candidate["Answer {question}."]
    assert {asking for _, asking in by_candidate[TEXT]} == {0, 1}


async def test_tasks_of_two_sets_with_one_id_are_different_tasks(open_study):
    study, phase = open_study()
    await study.evaluate([(study.incumbent, study.train[:1])], split="train")
    await study.evaluate([(study.incumbent, study.val[:1])], split="val")
    assert [rollout.asking for rollout in phase.asked] == [0, 0]
    assert len({rollout.key for rollout in phase.asked}) == 2


async def test_the_score_of_a_task_is_the_mean_of_its_samples(open_study):
    scores = iter([0.2, 0.6, 1.0, 1.0])
    study, _ = open_study({"samples": 2}, score=lambda rollout: next(scores))
    (seen,) = await study.evaluate([(study.incumbent, study.val[:2])], split="val")
    assert [each.score for each in seen] == [0.4, 1.0]
    assert seen[0].scores == (0.2, 0.6)
    assert seen[0].why == "because"
    assert study.left == 96


async def test_a_failed_attempt_of_the_agent_counts_as_the_penalty(open_study):
    failures = {"0": FailureKind.DEADLINE, "1": FailureKind.AGENT}
    study, phase = open_study(score=lambda rollout: failures.get(rollout.task.id, 1.0))
    (seen,) = await study.evaluate([(study.incumbent, study.val)], split="val")
    assert study.mean(seen) == 0.5
    assert seen[0].failure is FailureKind.DEADLINE
    assert "failed with deadline" in seen[0].why
    assert len(phase.asked) == 4
    assert phase.losses.counts == {}


async def test_an_infrastructure_failure_is_repeated_once_and_then_left_out(open_study):
    def score(rollout):
        failing = rollout.task.id == "0" or (rollout.task.id == "1" and "again" not in rollout.key)
        return FailureKind.ENGINE if failing else 0.6

    study, phase = open_study(score=score)
    (seen,) = await study.evaluate([(study.incumbent, study.val)], split="val")
    assert study.mean(seen) == pytest.approx(0.6)
    assert [each.lost for each in seen] == [True, False, False, False]
    assert study.left == 100 - 4 - 2
    again = [rollout for rollout in phase.asked if "again" in rollout.key]
    assert [rollout.asking for rollout in again] == [0, 0], "the seed of the pair is kept"
    assert phase.losses.counts == {"prompts_rollouts_repeated": 2, "prompts_rollouts_lost": 1}


async def test_repetitions_stay_within_the_budget(open_study):
    study, phase = open_study(rollouts=5, score=lambda rollout: FailureKind.LOST)
    await study.evaluate([(study.incumbent, study.val)], split="val")
    assert len(phase.asked) == 5
    assert study.left == 0


async def test_a_reward_that_fails_twice_is_a_failure_of_the_agent(open_study):
    study, phase = open_study(score=lambda rollout: FailureKind.REWARD)
    (seen,) = await study.evaluate([(study.incumbent, study.val)], split="val")
    assert study.mean(seen) == 0.0
    assert phase.losses.counts == {"prompts_rollouts_repeated": 4}


async def test_an_outage_ends_the_study_with_its_cause(open_study):
    study, _ = open_study(score=lambda rollout: FailureKind.ENGINE)
    await study.evaluate([(study.incumbent, study.val)], split="val")
    with pytest.raises(RolloutsLostError, match="failed with engine"):
        await study.evaluate([(study.incumbent, study.val)], split="val")


async def test_no_mean_without_scores(open_study):
    study, _ = open_study(score=lambda rollout: FailureKind.ENGINE)
    (seen,) = await study.evaluate([(study.incumbent, study.val)], split="val")
    assert study.mean(seen) == float("-inf")
    assert study.scored(study.incumbent) is None


async def test_the_best_has_the_highest_mean_and_the_first_wins_ties(open_study):
    scores = {"A {question}": 0.4, "B {question}": 0.9, "C {question}": 0.9}
    study, _ = open_study(score=lambda rollout: scores.get(rollout.candidate["writer"], 0.3))
    made = [study.propose({"writer": text}, parent=study.incumbent) for text in scores]
    await study.evaluate([(each, study.val) for each in (*made, study.incumbent)], split="val")
    assert study.best == {"writer": "B {question}"}
    assert study.scored(made[1]).mean == pytest.approx(0.9)


async def test_a_candidate_counts_once_all_validation_tasks_ran(open_study):
    study, _ = open_study(score=lambda rollout: float("B" in rollout.candidate["writer"]))
    child = study.propose({"writer": "B {question}"}, parent=study.incumbent)
    await study.evaluate([(study.incumbent, study.val), (child, study.val[:3])], split="val")
    assert study.best == study.incumbent
    await study.evaluate([(child, study.train)], split="train")
    assert study.best == study.incumbent
    await study.evaluate([(child, study.val[3:])], split="val")
    assert study.best == child


async def test_a_candidate_that_was_not_proposed_does_not_run(open_study):
    study, phase = open_study()
    with pytest.raises(CandidateRefusedError, match="not proposed"):
        await study.evaluate([({"writer": "Anything {question}"}, study.val)], split="val")
    assert not phase.asked


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        ("Answer briefly.", "placeholders", r"lost \{question\}"),
        ("Answer {question} for {user}.", "placeholders", r"invented \{user\}"),
        ("Answer {questions}.", "placeholders", r"lost \{question\} and invented \{questions\}"),
        ("  \n", "empty", "is empty"),
        ("{question}" * 1000, "too_long", "10000 characters; at most 8000"),
        (TEXT, "same", "equal"),
        (f"  {TEXT}\n", "same", "equal"),
    ],
)
async def test_a_refused_candidate_is_counted(open_study, text, cause, words):
    study, phase = open_study()
    with pytest.raises(CandidateRefusedError, match=words) as caught:
        study.propose({"writer": text}, parent=study.incumbent)
    assert caught.value.cause == cause
    assert phase.losses.counts == {f"prompts_refused_{cause}": 1}


async def test_a_candidate_is_proposed_once(open_study):
    study, phase = open_study()
    study.propose({"writer": "Say {question}"}, parent=study.incumbent)
    for text in ("Say {question}", "Say {question}\n"):
        with pytest.raises(CandidateRefusedError, match="proposed before"):
            study.propose({"writer": text}, parent=study.incumbent)
    with pytest.raises(CandidateRefusedError, match="lost"):
        study.propose({"writer": "Say it"}, parent=study.incumbent)
    with pytest.raises(CandidateRefusedError, match="refused before"):
        study.propose({"writer": "Say it"}, parent=study.incumbent)
    assert phase.losses.counts["prompts_refused_repeated"] == 3


@pytest.mark.parametrize(
    "braces", ['{"a": 1}', "{}", "{0}", "{ x }", "{{", "{a b}", "{question!r}"]
)
async def test_other_braces_are_literal(open_study, braces):
    study, _ = open_study()
    text = f"Answer {{question}} as {braces}."
    assert study.propose({"writer": text}, parent=study.incumbent) == {"writer": text}


async def test_a_name_in_braces_that_the_incumbent_shows_literally_may_stay(open_study):
    """A captured text may contain a name in braces that is no placeholder."""
    text = "Fill {question}; write {name} for names."
    study, _ = open_study(prompts={"writer": prompt(text)})
    study.propose({"writer": "Use {name}. Fill {question}."}, parent=study.incumbent)
    study.propose({"writer": "Fill {question}."}, parent=study.incumbent)


async def test_an_incumbent_above_the_limit_may_not_grow(open_study):
    long = "{question}" + "x" * 90
    study, _ = open_study({"max_chars": 50}, prompts={"writer": prompt(long)})
    study.propose({"writer": "{question}" + "y" * 90}, parent=study.incumbent)
    with pytest.raises(CandidateRefusedError, match="at most 100"):
        study.propose({"writer": "{question}" + "y" * 91}, parent=study.incumbent)


async def test_a_prompt_that_is_not_tuned_is_refused(open_study):
    study, _ = open_study()
    with pytest.raises(CandidateRefusedError, match=r"'planner' is not tuned.*writer"):
        study.propose({"planner": "Plan"}, parent=study.incumbent)


async def test_too_many_refusals_in_a_row_end_the_study(open_study):
    study, _ = open_study({"max_refused": 3})
    for text in ("", "1"):
        with pytest.raises(CandidateRefusedError):
            study.propose({"writer": text}, parent=study.incumbent)
    study.propose({"writer": "Say {question}"}, parent=study.incumbent)
    for text in ("2", "3"):
        with pytest.raises(CandidateRefusedError):
            study.propose({"writer": text}, parent=study.incumbent)
    with pytest.raises(ProposalsRefusedError, match="3 candidates in a row"):
        study.propose({"writer": "4"}, parent=study.incumbent)


async def test_a_copied_passage_of_a_task_is_reported(open_study, caplog):
    study, phase = open_study()
    phase.train.append(
        Task(id="long", input={"text": "The red fox jumps over seven lazy dogs in the old barn"})
    )
    copied = "Answer {question}. RED fox, jumps over seven lazy dogs in the barn!"
    with caplog.at_level(logging.WARNING):
        child = study.propose({"writer": copied}, parent=study.incumbent)
        study.propose({"writer": copied + " Be brief."}, parent=child)
    assert phase.losses.counts == {"prompts_copied_tasks": 1}
    assert "fox jumps over seven lazy dogs in the" in caplog.text
    study.propose({"writer": "Example: " + copied}, parent=study.incumbent, demonstrations=True)
    assert phase.losses.counts == {"prompts_copied_tasks": 1}


async def test_random_numbers_depend_on_seed_and_parts(open_study):
    study, phase = open_study()
    first = study.random("a", 1).random()
    assert study.random("a", 1).random() == first
    assert study.random("a", 2).random() != first
    phase.seed = 1
    assert study.random("a", 1).random() != first


class Once(PromptOptimizer):
    """Evaluates the incumbent and one child."""

    def least(self, study):
        return 2 * study.cost(len(study.val))

    async def optimize(self, study):
        await study.evaluate([(study.incumbent, study.val)], split="val")
        child = study.propose({"writer": "Say {question}"}, parent=study.incumbent)
        await study.evaluate([(child, study.val)], split="val")
        return study.best


class Invents(Once):
    async def optimize(self, study):
        return {"writer": "Not proposed {question}"}


async def test_a_result_that_was_not_proposed_is_an_error(tmp_path):
    with pytest.raises(CandidateRefusedError, match="not proposed"):
        await tunes(Invents)(StudyOptions()).optimize(FakePhase(tmp_path))


class Forever(Once):
    async def optimize(self, study):
        await super().optimize(study)
        while True:
            await study.evaluate([(study.incumbent, study.val)], split="val")


async def test_the_result_has_the_scores_before_and_after(tmp_path):
    phase = FakePhase(
        tmp_path, score=lambda rollout: 0.9 if "Say" in rollout.candidate["writer"] else 0.4
    )
    tuned = await tunes(Once)(StudyOptions()).optimize(phase)
    assert tuned.texts == {"writer": "Say {question}"}
    assert (tuned.before.mean, tuned.after.mean) == pytest.approx((0.4, 0.9))
    assert (tuned.rollouts, tuned.candidates, tuned.reason) == (8, 2, "")
    assert "fake: 100 rollouts, budget for 24 proposals" in phase.stages


async def test_an_ended_study_has_the_best_candidate_and_the_reason(tmp_path):
    phase = FakePhase(
        tmp_path,
        rollouts=18,
        score=lambda rollout: 0.9 if "Say" in rollout.candidate["writer"] else 0.4,
    )
    tuned = await tunes(Forever)(StudyOptions()).optimize(phase)
    assert tuned.texts == {"writer": "Say {question}"}
    assert tuned.rollouts == 16
    assert tuned.reason == "The next evaluation needs 4 rollouts, and 2 of 18 are left"


async def test_a_budget_below_one_proposal_is_a_configuration_error(tmp_path):
    phase = FakePhase(tmp_path, rollouts=7)
    with pytest.raises(ConfigError, match=r"phases\[0\].rollouts = 7: 'fake' needs at least 8"):
        await tunes(Once)(StudyOptions()).optimize(phase)
    assert not phase.asked


@pytest.mark.parametrize(
    ("field", "words"),
    [("train", "no training tasks"), ("val", "no validation tasks"), ("prompts", "no prompt")],
)
async def test_a_phase_without_tasks_or_prompts_is_a_configuration_error(tmp_path, field, words):
    phase = FakePhase(tmp_path)
    setattr(phase, field, type(getattr(phase, field))())
    with pytest.raises(ConfigError, match=words):
        await tunes(Once)(StudyOptions()).optimize(phase)


async def test_validation_tasks_that_are_training_tasks_are_counted(tmp_path, caplog):
    phase = FakePhase(tmp_path)
    phase.val[:2] = [Task(id=f"copy {n}", input=f"training question {n}") for n in range(2)]
    with caplog.at_level(logging.WARNING):
        await tunes(Once)(StudyOptions()).optimize(phase)
    assert phase.losses.counts["prompts_val_overlap"] == 2
    assert "2 of 4 validation tasks are training tasks too" in caplog.text


async def test_scores_without_variance_are_reported(tmp_path, caplog):
    phase = FakePhase(tmp_path)
    with caplog.at_level(logging.WARNING):
        tuned = await tunes(Once)(StudyOptions()).optimize(phase)
    assert tuned.texts == {"writer": TEXT}
    assert "all validation scores were 0.5" in tuned.reason
    assert "all validation scores were 0.5" in caplog.text
    assert phase.losses.counts["prompts_scores_equal"] == 1


class Chooses(Once):
    async def optimize(self, study):
        await super().optimize(study)
        error = BudgetSpentError("enough")
        error.chosen = study.incumbent
        raise error


async def test_an_optimizer_may_end_with_its_own_choice(tmp_path):
    phase = FakePhase(
        tmp_path, score=lambda rollout: 0.9 if "Say" in rollout.candidate["writer"] else 0.4
    )
    tuned = await tunes(Chooses)(StudyOptions()).optimize(phase)
    assert (tuned.texts, tuned.reason) == ({"writer": TEXT}, "enough")


async def test_an_outage_from_the_beginning_is_an_error(tmp_path):
    phase = FakePhase(tmp_path, score=lambda rollout: FailureKind.ENGINE)
    with pytest.raises(RolloutsLostError):
        await tunes(Forever)(StudyOptions()).optimize(phase)


class Hides:
    """A filter that replaces a word."""

    def cleaned(self, value, use):
        assert use == "reflection"
        return json.loads(json.dumps(value).replace("question", "***"))


async def test_filters_clean_what_an_optimizer_reads_and_leave_prompts_and_scores(tmp_path):
    phase = FakePhase(tmp_path)
    study = Study(phase, StudyOptions(), [Hides()])
    ((seen, *_),) = await study.evaluate([(study.incumbent, study.val)], split="val")
    assert seen.task.input == "validation *** 0"
    assert seen.why == "because"
    assert study.prompts["writer"].text == TEXT
    assert study.scored(study.incumbent).n == 4
    await study.close()


async def test_an_optimizer_gets_the_filters_of_the_run(tmp_path):
    read = []

    class Reads(PromptOptimizer):
        def least(self, study):
            return 1

        async def optimize(self, study):
            read.extend(await study.evaluate([(study.incumbent, study.val)], split="val"))
            return study.incumbent

    optimizer = tunes(Reads)(StudyOptions())
    assert isinstance(optimizer, TakesFilters)
    optimizer.filter_by([Hides()])
    await optimizer.optimize(FakePhase(tmp_path))
    assert {each.task.input for each in read[0]} == {f"validation *** {n}" for n in range(4)}

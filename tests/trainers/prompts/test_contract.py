"""The contract of optimisers: hill climbing fulfils it, and each flaw breaks a rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from agl_testing.optimizer_contract import OptimizerContract

HERE = Path(__file__).parent
FILE = HERE / "climbing.py"


class TestHillClimbing(OptimizerContract):
    factory = f"{FILE}:climb"
    model = f"{FILE}:ClimbOptions"


class Flawed(OptimizerContract):
    factory = f"{FILE}:flawed"
    model = f"{FILE}:ClimbOptions"
    __test__ = False


FLAWS = [
    ("no_feedback", "test_it_reaches_the_optimum"),
    ("no_feedback", "test_it_beats_random_edits"),
    ("misreports", "test_it_reports_what_it_used"),
    ("overspends", "test_it_never_exceeds_its_budget"),
    ("any_budget", "test_it_never_exceeds_its_budget"),
    ("silent", "test_it_says_how_many_proposals_the_budget_allows"),
    ("keeps_last", "test_it_keeps_the_best_and_not_the_last"),
    ("different_tasks", "test_equal_prompts_are_rarely_called_better"),
    ("unseeded", "test_it_is_deterministic"),
    ("forgets_edits", "test_it_resumes_after_an_interruption_at_every_point"),
    ("new_keys", "test_it_resumes_after_an_interruption_at_every_point"),
    ("new_keys", "test_it_resumes_after_its_process_was_killed"),
    ("lost_is_zero", "test_faults_of_the_infrastructure_do_not_change_the_order"),
    ("hides_errors", "test_an_outage_ends_the_phase"),
    ("only_finished", "test_a_prompt_that_exceeds_deadlines_has_a_lower_score"),
    ("hides_errors", "test_an_editor_that_never_answers_is_an_error"),
    ("hides_errors", "test_it_stops_after_three_editor_failures_in_a_row"),
    ("unguarded", "test_a_failed_edit_does_not_run_again"),
    ("no_feedback", "test_single_editor_failures_are_survived"),
    ("no_feedback", "test_braces_of_json_are_literal"),
]
EDITORS = [
    ("test_an_editor_without_a_new_text_costs_no_rollouts", "nonsense"),
    ("test_an_editor_without_a_new_text_costs_no_rollouts", "nothing"),
    ("test_a_candidate_that_must_not_run_is_refused_and_counted", "huge"),
    ("test_a_candidate_that_must_not_run_is_refused_and_counted", "drops"),
    ("test_a_candidate_that_must_not_run_is_refused_and_counted", "invents"),
]


@pytest.mark.parametrize(("flaw", "rule"), FLAWS)
async def test_a_flaw_breaks_a_rule(flaw, rule, tmp_path):
    suite = Flawed()
    suite.options = {"flaw": flaw}
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await getattr(suite, rule)(tmp_path)


@pytest.mark.parametrize(("rule", "editor"), EDITORS)
async def test_an_unguarded_optimizer_breaks_the_rules_about_texts(rule, editor, tmp_path):
    suite = Flawed()
    suite.options = {"flaw": "unguarded"}
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await getattr(suite, rule)(tmp_path, editor)


async def test_an_optimizer_without_an_editor_skips_the_rules_about_editors(tmp_path):
    suite = Flawed()
    suite.edits = False
    with pytest.raises(pytest.skip.Exception):
        await suite.test_braces_of_json_are_literal(tmp_path)

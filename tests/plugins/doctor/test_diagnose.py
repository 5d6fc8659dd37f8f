"""The whole: what a healthy run looks like, and what a broken backend leaves unchecked."""

import asyncio
import json

from agl_doctor._diagnose import diagnose

from tests.plugins.doctor.conftest import only, writer


def test_a_healthy_run_has_no_warning(clinic) -> None:
    diagnosis = clinic.diagnose(writer)
    bad = [f for f in diagnosis.findings if f.severity != "ok"]
    assert bad == []
    assert not diagnosis.failed
    assert (diagnosis.tasks, diagnosis.samples, diagnosis.calls) == (2, 2, 4)


def test_records_lie_apart_from_the_run(clinic, tmp_path) -> None:
    diagnosis = clinic.diagnose(writer, store__name="sqlite")
    assert diagnosis.directory == str(tmp_path / "trial" / "doctor")
    assert (tmp_path / "trial" / "doctor" / "store.db").is_file()
    assert not (tmp_path / "trial" / "store.db").exists()
    assert not (tmp_path / "trial" / "checkpoints").exists()


def test_no_more_tasks_than_there_are_and_two_attempts_at_least(clinic) -> None:
    diagnosis = clinic.diagnose(writer, tasks=9, algorithm__group_size=1)
    assert (diagnosis.tasks, diagnosis.samples) == (4, 2)


def test_a_backend_without_ids_is_an_error_and_the_rest_is_still_looked_at(clinic) -> None:
    clinic.options["token_ids"] = False
    diagnosis = clinic.diagnose(writer)
    tokens = only(diagnosis, "backend.tokens")
    assert tokens.severity == "error"
    assert tokens.figures["token_ids"] is False
    assert only(diagnosis, "tokens.decode").severity == "not checked"
    assert only(diagnosis, "capture.exact").severity == "error"
    assert only(diagnosis, "rewards.arrive").severity == "ok"
    assert only(diagnosis, "rewards.vary").figures == {
        "groups": 2,
        "without_signal": 0,
        "alike": 0,
        "alone": 0,
    }


def test_a_backend_that_does_not_answer_ends_the_trial_before_it_begins(clinic) -> None:
    clinic.serve().fail(100, status=503)
    diagnosis = clinic.diagnose(writer)
    tokens = only(diagnosis, "backend.tokens")
    assert tokens.severity == "error"
    assert "503" in tokens.measured
    assert only(diagnosis, "trial").severity == "not checked"
    assert diagnosis.calls == 0


def test_a_run_that_only_tunes_prompts_needs_no_tokens(clinic) -> None:
    clinic.options["token_ids"] = False
    prompts = {"writer": {"agents": ["writer", "editor"], "text": "Write."}}
    phases = [{"optimizer": "bootstrap", "rollouts": 9, "threshold": 0.5}]
    app = clinic.app(writer, phases=json.dumps(phases), prompts=json.dumps(prompts))
    diagnosis = asyncio.run(diagnose(app, tasks=2))
    errors = {f.check for f in diagnosis.findings if f.severity == "error"}
    assert errors <= {"agents.match", "prompts.sent"}
    found = [f for f in diagnosis.findings if f.check == "agents.match"]
    assert [(f.figures["pattern"], f.severity) for f in found] == [
        ("writer", "ok"),
        ("editor", "error"),
    ]

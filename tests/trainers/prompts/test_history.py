"""The versions of a run's prompts, read from the journals of real studies."""

from __future__ import annotations

import json

import pytest
from agl_prompts import Study, StudyOptions
from agl_prompts._history import read_history

from agl_core.errors import ConfigError
from tests.trainers.prompts.fakes import TEXT, FakePhase, prompt
from tests.trainers.prompts.runs import KIND, LONGER, SCORES, WrittenRun


@pytest.fixture
def run(tmp_path):
    return WrittenRun(tmp_path / "run")


def rows(phase):
    return [
        (each.version, each.parent, each.score and each.score.mean, each.chosen)
        for each in phase.entries
    ]


async def test_versions_have_scores_parents_and_the_choice(run):
    await run.phase([(LONGER, TEXT), (KIND, LONGER)])
    history = read_history(run.directory)
    (phase,) = history.phases
    assert [texts["writer"] for texts in history.versions] == [TEXT, LONGER, KIND]
    assert rows(phase) == [
        (1, None, 0.25, False),
        (2, 1, 0.5, False),
        (3, 2, 0.75, True),
    ]
    assert [each.changed for each in phase.entries] == [[], ["writer"], ["writer"]]
    assert phase.entries[2].why == f"from {LONGER}"
    assert (phase.number, phase.optimizer, phase.tasks, phase.ended) == (0, "fake", 4, True)
    assert history.best == 3


async def test_a_second_phase_numbers_equal_texts_equally_and_scores_them_anew(run):
    await run.phase([(LONGER, TEXT)])
    await run.phase([(KIND, LONGER), (TEXT, LONGER)], incumbent=LONGER, optimizer="other")
    history = read_history(run.directory)
    assert [rows(phase) for phase in history.phases] == [
        [(1, None, 0.25, False), (2, 1, 0.5, True)],
        [(2, None, SCORES[LONGER], False), (3, 2, 0.75, True), (1, 2, 0.25, False)],
    ]
    assert [phase.optimizer for phase in history.phases] == ["fake", "other"]


async def test_a_prompt_that_only_a_later_phase_tunes_is_in_every_version(run):
    await run.phase([(LONGER, TEXT)])
    both = {"writer": prompt(LONGER), "planner": prompt("Plan {question}.", name="planner")}
    await run.phase([(KIND, LONGER)], prompts=both)
    history = read_history(run.directory)
    assert history.names() == ["planner", "writer"]
    assert {texts["planner"] for texts in history.versions} == {"Plan {question}."}
    assert history.phases[1].entries[0].version == 2


async def test_an_active_phase_has_a_best_version_so_far(run):
    await run.phase([(LONGER, TEXT)], end=False)
    history = read_history(run.directory)
    (phase,) = history.phases
    assert not phase.ended
    assert phase.best is phase.entries[1]
    assert history.best == 2


async def test_a_partial_last_line_and_a_damaged_one_leave_the_others(run):
    phase = await run.phase([(LONGER, TEXT)], end=False)
    (file,) = phase.directory.glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    wrong = [b"{nonsense\n", b'{"event": "candidate"}\n', b'{"event": "new kind"}\n']
    file.write_bytes(b"".join([*lines[:2], *wrong, *lines[2:-1], lines[-1][:-9]]))
    history = read_history(run.directory)
    assert history.phases[0].damaged == 2
    assert rows(history.phases[0]) == [(1, None, 0.25, False), (2, 1, None, False)]
    assert history.best == 1


async def test_a_version_without_all_tasks_has_no_score(run):
    phase = FakePhase(run.directory / "prompts")
    study = Study(phase, StudyOptions())
    await study.evaluate([(study.incumbent, study.val)], split="val")
    made = study.propose({"writer": LONGER}, parent=study.incumbent)
    await study.evaluate([(made, study.val[:3])], split="val")
    await study.close()
    entry = read_history(run.directory).phases[0].entries[1]
    assert (entry.score, entry.mean, entry.tasks) == (None, 0.5, 3)


async def test_refused_candidates_are_counted_by_cause(run):
    phase = FakePhase(run.directory / "prompts")
    study = Study(phase, StudyOptions())
    for text in ("No placeholder.", TEXT):
        with pytest.raises(Exception, match=r"lost|equal"):
            study.propose({"writer": text}, parent=study.incumbent)
    await study.close()
    assert read_history(run.directory).phases[0].refused == {"placeholders": 1, "same": 1}


async def test_scores_are_those_of_the_study(run):
    phase = FakePhase(run.directory / "prompts", score=lambda asked: float(asked.task.id) / 3)
    study = Study(phase, StudyOptions())
    for _ in range(2):
        await study.evaluate([(study.incumbent, study.val)], split="val")
    expected = study.scored(study.incumbent)
    await study.close()
    assert read_history(run.directory).phases[0].entries[0].score == expected


def test_a_run_without_journals_has_no_history(tmp_path):
    assert read_history(tmp_path) is None
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "0-fake.jsonl").write_text(json.dumps({"event": "chosen"}))
    assert read_history(tmp_path) is None


async def test_versions_are_found_by_number_and_by_name(run):
    await run.phase([(LONGER, TEXT), (KIND, TEXT)])
    history = read_history(run.directory)
    assert [history.find(each) for each in ("1", "3", "before", "best")] == [1, 3, 1, 3]
    assert history.number_of({"writer": f" {LONGER} ", "note": "x"}) == 2
    assert history.number_of({"writer": "x"}) is None
    for wrong in ("0", "4", "-1", "last"):
        with pytest.raises(ConfigError, match=f"no version '{wrong}'.*1 to 3"):
            history.find(wrong)

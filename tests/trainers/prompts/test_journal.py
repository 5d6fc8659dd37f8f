"""The journal of a phase: what it holds, and what a resumed phase reads from it."""

from __future__ import annotations

import json
import stat

import pytest
from agl_prompts import EditorError, Study, StudyOptions
from agl_prompts._journal import Journal
from hypothesis import given
from hypothesis import strategies as st

from tests.trainers.prompts.fakes import TEXT, FakePhase

SOURCE = """
calls = []

def edit(messages, role):
    calls.append(role)
    if messages[0]["content"].startswith("fail"):
        raise ValueError("out of order")
    return f"answer {len(calls)}"
"""


@pytest.fixture
def function(tmp_path):
    file = tmp_path / "editor_of_the_journal.py"
    file.write_text(SOURCE)
    return f"{file}:edit"


@pytest.fixture
async def open_study(tmp_path, function):
    opened = []

    def make():
        phase = FakePhase(tmp_path / "prompts")
        study = Study(phase, StudyOptions(editor={"function": function}))
        opened.append(study)
        return study, phase

    yield make
    for study in opened:
        await study.close()


def asked(text):
    return [{"role": "user", "content": text}]


def events(tmp_path):
    text = (tmp_path / "prompts" / "0-fake.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


async def test_each_event_is_one_line(open_study, tmp_path):
    study, _ = open_study()
    child = study.propose({"writer": "Say {question}"}, parent=study.incumbent, why="shorter")
    await study.evaluate([(child, study.val)], split="val")
    await study.edit(asked("critic this"), role="critic")
    with pytest.raises(EditorError):
        await study.edit(asked("fail"), role="editor")
    study.result(child, "")
    found = events(tmp_path)
    assert [each["event"] for each in found] == [
        "candidate",
        "candidate",
        "score",
        "edit",
        "edit",
        "chosen",
    ]
    incumbent, proposed, score, edit, failed, chosen = found
    assert incumbent["texts"] == {"writer": TEXT}
    assert proposed["parent"] == incumbent["digest"]
    assert (proposed["why"], proposed["texts"]) == ("shorter", {"writer": "Say {question}"})
    assert score["digest"] == proposed["digest"] == chosen["digest"]
    assert (score["split"], score["mean"], score["rollouts"]) == ("val", 0.5, 4)
    assert (edit["role"], edit["agent"], edit["n"]) == ("critic", "@critic", 0)
    assert edit["answer"] == "answer 1"
    assert edit["messages"] == asked("critic this")
    assert edit["tokens"] > 0
    assert "out of order" in failed["error"]


async def test_the_file_is_private(open_study, tmp_path):
    open_study()
    file = tmp_path / "prompts" / "0-fake.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


async def test_a_refused_candidate_is_journalled_with_its_cause(open_study, tmp_path):
    study, _ = open_study()
    with pytest.raises(Exception, match="lost"):
        study.propose({"writer": "Say"}, parent=study.incumbent)
    assert events(tmp_path)[-1]["event"] == "refused"
    assert events(tmp_path)[-1]["cause"] == "placeholders"


async def script(study):
    answers = []
    for text in ("a", "a", "b", "fail early", "a"):
        try:
            answers.append(await study.edit(asked(text), role="editor"))
        except EditorError as error:
            answers.append(str(error))
    return answers


async def test_answers_are_replayed_in_the_order_of_equal_messages(open_study, tmp_path):
    first, _ = open_study()
    answers = await script(first)
    assert answers[:3] == ["answer 1", "answer 2", "answer 3"]
    await first.close()
    before = events(tmp_path)
    second, _ = open_study()
    assert await script(second) == answers
    assert events(tmp_path) == before, "a repeated event is written once"
    assert await second.edit(asked("a"), role="editor") == "answer 6"
    assert second.result(second.incumbent, "").calls == {"editor": 6}


async def test_failures_at_the_end_are_tried_again(open_study, tmp_path, function):
    first, _ = open_study()
    await first.edit(asked("a"), role="editor")
    for _ in range(2):
        with pytest.raises(EditorError):
            await first.edit(asked("fail"), role="editor")
    await first.close()
    source = tmp_path / "editor_of_the_journal.py"
    fixed = tmp_path / "fixed_editor_of_the_journal.py"
    fixed.write_text(source.read_text().replace('raise ValueError("out of order")', 'return "ok"'))
    study = Study(
        FakePhase(tmp_path / "prompts"), StudyOptions(editor={"function": f"{fixed}:edit"})
    )
    assert await study.edit(asked("a"), role="editor") == "answer 1"
    assert await study.edit(asked("fail"), role="editor") == "ok"
    await study.close()


async def test_limits_hold_over_a_resumption(tmp_path, function):
    for calls in (2, 3):
        phase = FakePhase(tmp_path / "prompts")
        study = Study(phase, StudyOptions(editor={"function": function, "calls": calls}))
        for _ in range(calls):
            await study.edit(asked("a"), role="editor")
        with pytest.raises(Exception, match=f"calls = {calls}"):
            await study.edit(asked("a"), role="editor")
        await study.close()


@given(st.integers(0, 400))
def test_a_file_cut_anywhere_is_read_up_to_its_last_whole_line(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("journal") / "prompts" / "0-fake.jsonl"
    journal = Journal(path)
    for number in range(4):
        journal.write(
            "edit", role="editor", messages_sha256=f"{number}", n=0, answer="half \ud83d\r\n"
        )
    journal.close()
    content = path.read_bytes()
    path.write_bytes(content[:cut])
    resumed = Journal(path)
    whole = content[:cut].count(b"\n")
    assert len(resumed.edits) == whole
    assert resumed.damaged == 0
    for number in range(4):
        resumed.write(
            "edit", role="editor", messages_sha256=f"{number}", n=0, answer="half \ud83d\r\n"
        )
    resumed.close()
    assert path.read_bytes() == content


@pytest.mark.parametrize("line", [b"{not json", b"[]", b'{"a": 1}', b'{"event": "edit"}', b"\xff"])
def test_a_damaged_line_is_counted_and_left_out(tmp_path, line):
    path = tmp_path / "0-fake.jsonl"
    path.write_bytes(
        line + b'\n{"event": "edit", "role": "editor", "messages_sha256": "a", "n": 0}\n'
    )
    journal = Journal(path)
    assert journal.damaged == 1
    assert list(journal.edits) == [("editor", "a", 0)]
    journal.close()


async def test_damaged_lines_are_counted_in_the_losses(open_study, tmp_path):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "0-fake.jsonl").write_bytes(b"{\n")
    _, phase = open_study()
    assert phase.losses.counts == {"prompts_journal_damaged": 1}

"""A judge over real HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agl_rewards import LlmJudge
from agl_rewards import _llm_judge as llm_judge
from agl_testing.attempts import ScriptedAttempt
from agl_testing.fake_openai import FakeOpenAI

from agl_core._builtin import load_plugins
from agl_core.app.parts import build_rewards
from agl_core.config import RewardConfig
from agl_core.errors import ConfigError, RewardError
from agl_core.types import Task
from tests.core.interfaces.test_agent_call import recorded

TASK = Task(id="t", input="1 + 1?", expected="2")
RUBRIC = "1 where the sum is right, 0 otherwise."


def says(score: Any, reason: str = "so") -> str:
    return json.dumps({"reason": reason, "score": score})


class Court:
    """A server and judges at it."""

    def __init__(self) -> None:
        self.words = says(0.5)
        self.server = FakeOpenAI(lambda body: self.words)

    def judge(self, **options: Any) -> LlmJudge:
        given = {"base_url": self.server.base_url, "model": "judge", "rubric": RUBRIC}
        return LlmJudge(**{**given, **options})

    @property
    def asked(self) -> int:
        return len(self.server.log)

    def shown(self, number: int = 0) -> dict[str, Any]:
        return json.loads(self.server.log[number].body["messages"][1]["content"])


@pytest.fixture
async def court():
    made = Court()
    async with made.server:
        yield made


@pytest.fixture
def attempt():
    return ScriptedAttempt().record()


async def test_the_judge_sees_rubric_task_reference_and_answer(court, attempt):
    """llm_judge: an OpenAI-compatible endpoint scores by a rubric."""
    score = await court.judge(field="text")(TASK, {"text": "2"}, attempt)

    assert score == 0.5
    system, _ = court.server.log[0].body["messages"]
    assert RUBRIC in system["content"]
    assert court.shown() == {"task": "1 + 1?", "reference": "2", "answer": "2"}
    assert court.server.log[0].body["temperature"] == 0.0
    assert "authorization" not in court.server.log[0].headers
    assert await court.judge(field="text")(TASK, "no such field", attempt) == 0.0
    assert court.asked == 1


async def test_the_judges_words_are_the_reason(court, attempt, tmp_path):
    court.words = says(0.2, "the price is missing")
    for _ in range(2):  # the second from the stored verdict
        judge = court.judge()
        judge.keep_in(tmp_path)
        given = await judge(TASK, "2", attempt)
        assert (given, given.why) == (0.2, "the price is missing")
    court.words = '{"score": 1}'
    assert (await court.judge()(TASK, "2", attempt)).why == ""
    absent = await court.judge(field="text")(TASK, "2", attempt)
    assert (absent, absent.why) == (0.0, "the output has no field 'text'")
    assert court.asked == 2


async def test_the_key_comes_from_a_variable(court, attempt, monkeypatch):
    with pytest.raises(ConfigError, match="'JUDGE_KEY' is not set"):
        court.judge(api_key_env="JUDGE_KEY")
    monkeypatch.setenv("JUDGE_KEY", "secret")

    await court.judge(api_key_env="JUDGE_KEY")(TASK, "2", attempt)

    assert court.server.log[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("words", "score"),
    [
        (says(1), 1.0),
        (f"```json\n{says(0.25)}\n```", 0.25),
        (f"<think>maybe {says(0.1)} or {{x}}</think> {says(0)} done", 0.0),
    ],
)
async def test_verdicts_are_found_in_what_judges_write(court, attempt, words, score):
    court.words = words

    assert await court.judge()(TASK, "2", attempt) == score


@pytest.mark.parametrize(
    "words",
    [
        f'<think>{says(0.1)}</think> {{"score": 0.9, "reason": "it says "no""}}',
        f'{says(0.1)} {{"score": 0.9, "rea',
        f'{says(0.1)} {{"verdict": {says(0.9)}}}',
    ],
)
async def test_an_earlier_verdict_does_not_stand_for_one_that_cannot_be_read(court, attempt, words):
    """llm_judge: an example before the verdict is never taken for it."""
    court.words = words

    with pytest.raises(RewardError, match="gave no score from 0 to 1"):
        await court.judge()(TASK, "2", attempt)


async def test_an_answer_that_was_cut_off_is_no_verdict(court, attempt):
    """llm_judge: thinking that mentions a score and was cut off is never taken for a verdict."""

    def cut(body: dict[str, Any]) -> None:
        body["choices"][0]["finish_reason"] = "length"

    court.server.tamper = cut
    with pytest.raises(RewardError, match="was cut off at a token limit"):
        await court.judge()(TASK, "2", attempt)


@pytest.mark.parametrize(
    "words",
    ["fine", "{}", says(1.5), says(-1), says(None), says("1"), says(True), '{"score": NaN}', ""],
)
async def test_a_malformed_verdict_is_an_error_with_the_words(court, attempt, words):
    """llm_judge: what is no score is never taken for one."""
    court.words = words

    with pytest.raises(RewardError, match=r"gave no score from 0 to 1|gave no answer") as caught:
        await court.judge()(TASK, "2", attempt)
    assert words[:20] in str(caught.value)


async def test_an_error_of_the_endpoint_is_told_with_its_words(court, attempt):
    court.server.fail(1, status=401, body={"error": {"message": "no such key"}})

    with pytest.raises(RewardError, match=r"answered 401: .*no such key"):
        await court.judge()(TASK, "2", attempt)


async def test_a_busy_endpoint_is_asked_again(court, attempt, monkeypatch):
    monkeypatch.setattr(llm_judge, "_PAUSE_S", 0.0)
    court.server.fail(2, status=503)

    assert await court.judge()(TASK, "2", attempt) == 0.5
    court.server.fail(3, status=429)
    with pytest.raises(RewardError, match="answered 429"):
        await court.judge()(TASK, "3", attempt)


async def test_an_endpoint_that_is_not_there_is_named(attempt, monkeypatch):
    monkeypatch.setattr(llm_judge, "_PAUSE_S", 0.0)
    judge = LlmJudge(base_url="http://127.0.0.1:9/v1", model="judge", rubric=RUBRIC)

    with pytest.raises(RewardError, match=r"Cannot reach http://127\.0\.0\.1:9"):
        await judge(TASK, "2", attempt)


async def test_verdicts_are_kept_in_the_run(court, attempt, tmp_path):
    """llm_judge: a digest of model, rubric and input is asked for once, also after a crash."""
    for _ in range(2):
        judge = court.judge()
        judge.keep_in(tmp_path / "run")
        assert await judge(TASK, "2", attempt) == 0.5
        assert await judge(TASK, "2", attempt) == 0.5
    assert court.asked == 1

    (file,) = (tmp_path / "run" / "judge").iterdir()
    kept = json.loads(file.read_bytes())
    assert len(kept.pop("sha256")) == 64
    assert kept == {"score": 0.5, "reason": "so", "model": "judge"}
    assert file.stat().st_mode & 0o077 == 0
    for other in (court.judge(model="other"), court.judge(rubric="other")):
        other.keep_in(tmp_path / "run")
        await other(TASK, "2", attempt)
    judge = court.judge()
    judge.keep_in(tmp_path / "run")
    await judge(TASK, "3", attempt)
    assert court.asked == 4


async def test_folders_of_verdicts_are_private(court, attempt, tmp_path):
    """llm_judge: also those above it that it makes, under any umask."""
    judge = court.judge()
    judge.keep_in(tmp_path / "runs" / "run")
    before = os.umask(0o022)
    try:
        await judge(TASK, "2", attempt)
    finally:
        os.umask(before)

    made = sorted((tmp_path / "runs").rglob("*"))
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "runs", *made)]
    assert modes == [0o700, 0o700, 0o700, 0o600]


async def test_a_verdict_that_cannot_be_written_leaves_no_file(court, attempt, tmp_path, caplog):
    resource = pytest.importorskip("resource")
    judge = court.judge()
    judge.keep_in(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))  # as on a full disk
    try:
        score = await judge(TASK, "2", attempt)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert score == 0.5
    assert "cannot be kept" in caplog.text
    assert list((tmp_path / "judge").iterdir()) == []


@pytest.mark.parametrize(
    "left",
    [b"", b'{"score": 0', b'{"score": 7}', b"\xff", b'{"score": 0.9}', {b"0.5": b"0.9"}],
)
async def test_a_verdict_whose_file_is_damaged_is_asked_for_again(
    court, attempt, tmp_path, left, caplog
):
    """llm_judge: a damaged file is never a score; it is named and counted."""
    judge = court.judge()
    judge.keep_in(tmp_path)
    await judge(TASK, "2", attempt)
    (file,) = (tmp_path / "judge").iterdir()
    if isinstance(left, dict):
        ((before, after),) = left.items()
        left = file.read_bytes().replace(before, after)
    file.write_bytes(left)
    again = court.judge()
    again.keep_in(tmp_path)

    assert await again(TASK, "2", attempt) == 0.5
    assert await again(TASK, "2", attempt) == 0.5
    assert court.asked == 2
    assert "asks again, as a verdict cannot be read" in caplog.text
    third = court.judge()
    third.keep_in(tmp_path)
    assert await third(TASK, "2", attempt) == 0.5
    assert court.asked == 2
    assert [each.name for each in (tmp_path / "judge").iterdir()] == [file.name]


async def test_processes_that_share_a_folder_share_verdicts(court, attempt, tmp_path):
    """llm_judge: of two that ask at the same time, the verdict kept first counts for both."""
    first, second = court.judge(), court.judge()
    for judge in (first, second):
        judge.keep_in(tmp_path)
    go = [asyncio.Event(), asyncio.Event()]
    reached = [asyncio.Event(), asyncio.Event()]

    async def before_send(answered: Any, position: int) -> None:
        number = court.server.log.index(answered)
        reached[number].set()
        await go[number].wait()

    court.server.before_send = before_send
    asking = asyncio.create_task(first(TASK, "2", attempt))
    await reached[0].wait()
    court.words = says(0.75)
    at_once = asyncio.create_task(second(TASK, "2", attempt))
    await reached[1].wait()
    go[1].set()

    assert await at_once == 0.75
    go[0].set()
    assert await asking == 0.75
    assert await first(TASK, "2", attempt) == 0.75
    assert court.asked == 2
    assert len(list((tmp_path / "judge").iterdir())) == 1


async def test_verdicts_are_kept_where_there_are_no_links(court, attempt, tmp_path, monkeypatch):
    def refuse(*paths: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(llm_judge.os, "link", refuse)
    for _ in range(2):
        judge = court.judge()
        judge.keep_in(tmp_path)
        assert await judge(TASK, "2", attempt) == 0.5
    assert court.asked == 1


async def test_an_agent_that_changes_the_working_directory_moves_no_verdicts(
    court, attempt, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    judge = court.judge()
    judge.keep_in(Path("run"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    await judge(TASK, "2", attempt)

    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_half_characters_are_judged_and_kept(court, attempt, tmp_path):
    court.words = '{"score": 1, "reason": "\\ud83d"}'
    judge = court.judge()
    judge.keep_in(tmp_path)

    assert await judge(TASK, "\ud83d", attempt) == 1.0
    court.server.log[0].body["messages"][1]["content"].encode()
    (file,) = (tmp_path / "judge").iterdir()
    assert json.loads(file.read_bytes())["reason"] == "\\ud83d"


async def test_attempts_that_ask_the_same_at_once_share_one_request(court, attempt):
    """llm_judge: one request per digest."""
    judge = court.judge()

    scores = await asyncio.gather(*(judge(TASK, "2", attempt) for _ in range(20)))

    assert scores == [0.5] * 20
    assert court.asked == 1


async def test_a_failure_is_shared_and_not_kept(court, attempt):
    judge = court.judge()
    court.words = "?"
    scores = await asyncio.gather(
        *(judge(TASK, "2", attempt) for _ in range(5)), return_exceptions=True
    )
    assert all(isinstance(score, RewardError) for score in scores)
    assert court.asked == 1

    court.words = says(1)
    assert await judge(TASK, "2", attempt) == 1.0


async def test_another_attempt_asks_when_the_first_is_cancelled(court, attempt):
    reached, go = asyncio.Event(), asyncio.Event()

    async def before_send(answered: Any, position: int) -> None:
        reached.set()
        await go.wait()

    court.server.before_send = before_send
    judge = court.judge()
    first = asyncio.create_task(judge(TASK, "2", attempt))
    await reached.wait()
    second = asyncio.create_task(judge(TASK, "2", attempt))
    await asyncio.sleep(0)
    first.cancel()
    go.set()

    assert await second == 0.5
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_the_judge_may_be_shown_the_conversation(court, attempt):
    spans = [recorded("c", started_ns=1, agent="writer", text="2")]
    record = replace(attempt, spans=spans)

    await court.judge(conversation=True)(TASK, "2", record)

    assert court.shown()["conversation"] == [
        {"agent": "writer", "messages": [], "answer": "2", "tool_calls": []}
    ]


def test_the_configuration_names_it():
    registry = load_plugins().registry("rewards")
    section = RewardConfig(name="llm_judge", base_url="http://h/v1", model="m", rubric=RUBRIC)

    (reward,) = build_rewards([section], registry)

    assert isinstance(reward.function, LlmJudge)
    with pytest.raises(ConfigError, match=r"rubric"):
        build_rewards([RewardConfig(name="llm_judge", base_url="x", model="m")], registry)

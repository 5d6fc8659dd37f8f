import json
import logging
import os
import sys
from types import SimpleNamespace

import pytest
from agl_progress._log import RunLog, run_log

from agl_core.types import Estimate, Evaluation, Report, StepReport


@pytest.fixture
def config(tmp_path):
    return SimpleNamespace(directory=str(tmp_path), name="run", train=SimpleNamespace(steps=2))


def events(tmp_path):
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line]


def test_each_event_is_a_line(tmp_path, config):
    with run_log(sys.stderr) as log:
        log.evaluation(Evaluation(step=0, score=Estimate(mean=1, low=0, high=1, n=2)))
        log.started(config)
        log.stage("evaluating")
        log.step(StepReport(step=1, steps=2, reward=float("nan"), metrics={"kl": 0.5}))
        log.evaluation(Evaluation(step=1, score=Estimate(mean=1, low=0, high=1, n=2)))
        log.finished(Report(run_id="run", directory="d", wall_s=3.0))
    started, stage, step, evaluation, finished = events(tmp_path)
    assert (started["event"], started["pid"], started["steps"]) == ("started", os.getpid(), 2)
    assert stage["doing"] == "evaluating"
    assert step["report"]["metrics"] == {"kl": 0.5}
    assert step["report"]["reward"] is None
    assert evaluation["report"]["score"]["mean"] == 1
    assert (finished["event"], finished["wall_s"]) == ("finished", 3.0)
    assert (tmp_path / "run" / "log.jsonl").stat().st_mode & 0o077 == 0


def test_an_error_ends_the_log(tmp_path, config):
    def run():
        with run_log(sys.stderr) as log:
            log.started(config)
            raise ValueError("broke")

    with pytest.raises(ValueError, match="broke"):
        run()
    assert events(tmp_path)[-1]["error"] == "ValueError: broke"


def test_a_resumed_run_continues_after_a_partial_line(tmp_path, config):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.jsonl").write_text('{"event": "st')
    log = RunLog()
    log.started(config)
    log.close()
    assert (
        (tmp_path / "run" / "log.jsonl")
        .read_text()
        .splitlines()[1]
        .startswith('{"event":"started"')
    )


def test_a_file_that_cannot_be_written_does_not_end_the_run(tmp_path, config, caplog):
    (tmp_path / "run").write_text("a file")
    log = RunLog()
    with caplog.at_level(logging.WARNING):
        log.started(config)
    log.step(StepReport(step=1, steps=2, reward=1.0))
    assert "not written" in caplog.text

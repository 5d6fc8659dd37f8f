"""Failures, time, capture, sampling and losses."""

import asyncio
import threading

import msgspec
import pytest
from agl_doctor._attempts import attempts
from agl_doctor._evidence import Evidence
from agl_testing.attempts import ScriptedAttempt

import agl_core as agl
from agl_core import semconv
from agl_core.config import RunConfig
from agl_core.runner._agent_loop import Stall
from agl_core.runner._limits import LoopWatch
from agl_core.tracing import active
from agl_core.types import AttemptStatus, Failure, FailureKind, Losses, SpanKind
from tests.plugins.doctor.conftest import ask, only, writer


async def fails_at_times(task: agl.Task) -> str:
    if agl.current().rollout.metadata["sample"]:
        raise ValueError("no such item")
    return await writer(task)


def test_some_failures_are_a_warning_with_kind_and_message(clinic) -> None:
    found = clinic.find(fails_at_times, "attempts.fail")
    assert found.severity == "warning"
    assert found.figures["failed"] == {"agent": 2}
    assert "no such item" in found.measured
    assert "fails_at_times" in found.figures["traceback"]


def test_nothing_but_failures_is_an_error_and_leaves_the_rest_unchecked(clinic) -> None:
    async def broken(task: agl.Task) -> str:
        raise ValueError("no such item")

    diagnosis = clinic.diagnose(broken)
    assert only(diagnosis, "attempts.fail").severity == "error"
    for check in ("capture.exact", "rewards.arrive", "rewards.vary"):
        assert only(diagnosis, check).severity == "not checked"


def test_an_attempt_that_runs_out_of_time_is_an_error(clinic) -> None:
    async def hangs(task: agl.Task) -> str:
        await asyncio.Event().wait()
        return ""

    found = clinic.find(hangs, "attempts.time", tasks=1, rollout__timeout_s=0.2)
    assert (found.severity, found.figures["timed_out"]) == ("error", 2)
    assert "rollout.timeout_s" in found.fix


def test_a_function_that_blocks_the_agents_loop_is_named(clinic, monkeypatch) -> None:
    """D1: the doctor names the function and the fix."""
    monkeypatch.setattr("agl_core.runner._agent_loop.BLOCKED_S", 0.01)
    monkeypatch.setattr("agl_core.runner._limits._LOOK_S", 0.005)
    seen = threading.Event()
    keep = LoopWatch._keep

    def keep_and_tell(watch: LoopWatch, stall: Stall) -> None:
        keep(watch, stall)
        seen.set()

    monkeypatch.setattr(LoopWatch, "_keep", keep_and_tell)

    async def sync_inside(task: agl.Task) -> str:
        seen.wait()  # as a sync client waits for its answer
        return "done"

    found = clinic.find(sync_inside, "agents.block", tasks=1)
    assert found.severity == "warning"
    assert "'sync_inside'" in found.measured
    assert "Make 'sync_inside' a plain def" in found.fix
    assert "seen.wait()" in found.figures["stack"]


def evidence(record, **fields) -> Evidence:
    config = RunConfig(rollout={"timeout_s": 10.0})
    return Evidence(config=config, policies=[], records=[record], calls=[], **fields)


def record(*, seconds: float | None):
    found = ScriptedAttempt().record()
    ended = None if seconds is None else 100.0 + seconds
    attempt = msgspec.structs.replace(found.attempt, started_at=100.0, ended_at=ended)
    return type(found)(rollout=found.rollout, attempt=attempt, spans=[])


@pytest.mark.parametrize(
    ("seconds", "severity"), [(4.9, "ok"), (5.0, "warning"), (None, "not checked")]
)
def test_an_attempt_that_takes_half_its_time_is_slow(seconds, severity) -> None:
    found = [f for f in attempts(evidence(record(seconds=seconds))) if f.check == "attempts.time"]
    assert [f.severity for f in found] == [severity]


def test_attempts_that_were_tried_again_are_told() -> None:
    last = record(seconds=1.0)
    lost = Failure(kind=FailureKind.ENGINE, message="the server went away")
    earlier = msgspec.structs.replace(
        last.attempt, id="at_0", status=AttemptStatus.FAILED, failure=lost
    )
    rollout = msgspec.structs.replace(last.rollout, attempts=(earlier, last.attempt))
    retried = type(last)(rollout=rollout, attempt=last.attempt, spans=[])
    found = [f for f in attempts(evidence(retried)) if f.check == "attempts.retry"]
    assert [(f.severity, f.figures) for f in found] == [("warning", {"retried": 1})]
    assert "the server went away" in found[0].measured


def test_a_capture_that_is_not_exact_is_an_error(clinic) -> None:
    async def greedy(task: agl.Task) -> str:
        with agl.agent_scope("writer"):
            return (await ask("write", temperature=0))["content"]

    found = clinic.find(greedy, "capture.exact")
    assert (found.severity, found.figures) == ("error", {"attempts": 4, "inexact": 4})
    assert "temperature 0" in found.measured


@pytest.mark.parametrize(("speaker", "severity"), [("writer", "error"), ("voice", "warning")])
def test_models_asked_over_a_websocket_are_told(clinic, speaker, severity) -> None:
    address = "wss://models.test:443/v1/realtime"

    async def speaks(task: agl.Task) -> str:
        with agl.agent_scope(speaker):
            recorder = active().recorder
            recorder.end(
                recorder.start(
                    SpanKind.LLM, "websocket", attributes={semconv.AGL_WEBSOCKET: address}
                )
            )
        return await writer(task)

    diagnosis = clinic.diagnose(speaks)
    found = only(diagnosis, "capture.websocket")
    assert found.severity == severity
    assert found.figures == {"connections": 4, "addresses": [address], "agents": [speaker]}
    exact = only(diagnosis, "capture.exact")
    assert exact.figures["inexact"] == (4 if speaker == "writer" else 0)


def test_sampling_that_a_loss_does_not_assume_is_a_warning(clinic) -> None:
    async def narrow(task: agl.Task) -> str:
        with agl.agent_scope("writer"):
            return (await ask("write", top_p=0.5))["content"]

    found = clinic.find(narrow, "sampling.plain")
    assert (found.severity, found.figures) == ("warning", {"calls": {"sampling_top_p": 4}})


def test_what_is_lost_is_counted_by_cause(clinic) -> None:
    async def two(task: agl.Task) -> str:
        agl.emit_reward(1.0, agent="planner")
        with agl.agent_scope("planner"):
            await ask("plan")
        return await writer(task)

    diagnosis = clinic.diagnose(two)
    found = only(diagnosis, "losses")
    assert (found.severity, found.figures) == ("warning", {"counts": {"rewards_untrained": 4}})


def test_losses_that_the_program_asked_for_are_no_warning() -> None:
    counts = {"superseded_tries": 2, "calls_untrainable": 1, "attempts_retried_engine": 4}
    lost = Losses(counts=counts)
    found = [f for f in attempts(evidence(record(seconds=1.0), losses=lost)) if f.check == "losses"]
    assert [f.severity for f in found] == ["ok"]
    assert found[0].figures == {"counts": {"superseded_tries": 2, "calls_untrainable": 1}}

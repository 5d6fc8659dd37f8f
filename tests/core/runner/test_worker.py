from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import os
import re
import signal
import sys
import threading

import httpx
import httpx2
import pytest
from agl_testing.fake_openai import FakeOpenAI

from agl_core.errors import StoreError
from agl_core.runner import Runner, RunnerOptions
from agl_core.threads import in_thread
from agl_core.tracing import agent_scope, current, current_scope, emit_reward
from agl_core.types import (
    LLM,
    AttemptStatus,
    FailureKind,
    Limits,
    Resources,
    Reward,
    Rollout,
    RolloutQuery,
    RolloutStatus,
    SpanKind,
    Task,
)
from tests.core.passing import Signal


async def echo_async(task):
    return {"answer": task.input}


def echo(task):
    return {"answer": task.input}


class CallableAgent:
    async def __call__(self, task):
        return {"answer": task.input}


AGENTS = [
    echo,
    echo_async,
    CallableAgent(),
    functools.partial(lambda _, task: {"answer": task.input}, None),
    lambda task: echo_async(task),  # noqa: PLW0108  a plain function that gives a coroutine
]


@pytest.mark.parametrize("agent", AGENTS, ids=["sync", "async", "object", "partial", "returns"])
async def test_every_kind_of_agent_runs_and_its_output_is_stored(enqueue, run_all, gateway, agent):
    runner, attempts, _ = await run_all(await enqueue(3), agent)
    assert [attempt.status for attempt in attempts] == [AttemptStatus.SUCCEEDED] * 3
    assert [attempt.output for attempt in attempts] == [{"answer": n} for n in range(3)]
    assert sorted(gateway.opened) == sorted(gateway.sealed) == sorted(a.id for a in attempts)
    assert runner.losses.counts == {}


async def test_an_output_without_a_json_form_is_kept_as_its_repr(enqueue, run_all):
    _, (attempt,), _ = await run_all(await enqueue(), lambda _: {"messages": [object]})
    assert attempt.output == {"messages": ["<class 'object'>"]}


async def test_the_agent_finds_its_attempt_model_and_environment(
    store, enqueue, run_all, gateway, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "user's")
    llms = {name: LLM(model=name, policy="trained", version=3) for name in ("tiny", "other")}
    await store.publish(Resources(items=llms))
    seen = []

    def agent(task):
        context = current()
        seen.append((context, os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]))

    _, (attempt,), _ = await run_all(await enqueue(timeout_s=20.0), agent)
    ((context, base_url, api_key),) = seen
    assert context.attempt.id == attempt.id
    assert context.resources.version == 1
    assert (context.llm.model, context.llm.policy) == ("tiny", "trained")
    assert context.llm.base_url == base_url == f"{gateway.url}/v1"
    assert api_key == gateway.client_key
    assert context.llm.api_key == gateway.attempt_key(attempt.rollout_id, attempt.id)
    other = context.resources.items["other"]
    assert (other.base_url, other.api_key) == (context.llm.base_url, context.llm.api_key)
    assert 0 < context.seconds_left() <= 20
    assert os.environ["OPENAI_API_KEY"] == "user's"


async def scored(record, output):
    return [
        Reward(value=float(output["answer"]), source="exact"),
        Reward(value=0.5, channel="style", source="style", why="too long"),
    ]


async def test_rewards_become_spans_with_their_source(enqueue, run_all):
    _, attempts, spans = await run_all(await enqueue(2), echo, scored)
    assert {attempt.status for attempt in attempts} == {AttemptStatus.SUCCEEDED}
    rewards = [
        (s.attempt_id, s.reward.channel, s.reward.value, s.reward.source) for s in spans if s.reward
    ]
    assert [s.reward.why for s in spans if s.reward] == ["", "too long"] * 2
    assert rewards == [
        (attempts[0].id, "main", 0.0, "exact"),
        (attempts[0].id, "style", 0.5, "style"),
        (attempts[1].id, "main", 1.0, "exact"),
        (attempts[1].id, "style", 0.5, "style"),
    ]


async def test_a_reason_that_is_cut_is_counted_with_the_runs_losses(enqueue, run_all):
    def agent(task):
        emit_reward(0.5, why="x" * 20_000)

    async def judged(record, output):
        (emitted,) = record.rewards
        return [Reward(value=emitted.value, why=emitted.why[:20] + "y" * 20_000)]

    runner, _, spans = await run_all(await enqueue(), agent, judged)
    first, second = (s.reward.why for s in spans if s.reward)
    assert first == "x" * 16_384 + "... [3616 more characters]"
    assert second.startswith("x" * 20 + "y")
    assert runner.losses.counts == {"truncated_value": 2}


async def test_a_reward_gets_the_real_output_and_what_the_agent_recorded(enqueue, run_all):
    marker = object()
    seen = []

    def agent(task):
        with agent_scope("writer"):
            emit_reward(0.25)
        return marker

    async def judge(record, output):
        scope = current_scope()
        seen.append((output, [span.name for span in record.spans], scope.agent, scope.trainable))
        return []

    _, (attempt,), spans = await run_all(await enqueue(), agent, judge)
    assert attempt.status is AttemptStatus.SUCCEEDED
    assert seen == [(marker, ["writer", "main"], "@reward", False)]
    assert [span.reward.value for span in spans if span.reward] == [0.25]


async def returns_none(record, output):
    return None


async def returns_numbers(record, output):
    return [1.0]


async def raises(record, output):
    raise ZeroDivisionError


async def exits(record, output):
    sys.exit(1)


async def emits_nan(record, output):
    emit_reward(float("nan"))
    return []


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (returns_none, "Reward function 'returns_none' returned None: return a list of rewards"),
        (returns_numbers, r"'returns_numbers' returned \[1.0\]"),
        (raises, "ZeroDivisionError"),
        (exits, "sys.exit"),
        (emits_nan, "emit_reward gave the reward nan"),
    ],
)
async def test_an_unusable_reward_fails_the_attempt_and_keeps_the_output(
    enqueue, run_all, rewards, message
):
    _, (attempt,), spans = await run_all(await enqueue(), echo, rewards)
    assert attempt.status is AttemptStatus.FAILED
    assert attempt.failure.kind is FailureKind.REWARD
    assert attempt.output == {"answer": 0}
    assert re.search(message, attempt.failure.message)
    assert [span.status for span in spans if span.name == "reward"] == ["error"]


def exit_sync(task):
    sys.exit(3)


async def exit_async(task):
    sys.exit(3)


def interrupt_sync(task):
    raise KeyboardInterrupt


async def cancel_itself(task):
    raise asyncio.CancelledError


def stop_iteration(task):
    raise StopIteration


def generator_exit(task):
    raise GeneratorExit


async def generator_exit_async(task):
    raise GeneratorExit


def takes_nothing():
    pass


async def takes_nothing_async():
    pass


MISBEHAVING = [
    exit_sync,
    exit_async,
    interrupt_sync,
    cancel_itself,
    stop_iteration,
    generator_exit,
    generator_exit_async,
    takes_nothing,
    takes_nothing_async,
]


@pytest.mark.parametrize("agent", MISBEHAVING, ids=lambda agent: agent.__name__)
async def test_whatever_an_agent_raises_ends_its_own_attempt_only(enqueue, run_all, agent):
    def mixed(task):
        return agent(task) if task.input == 0 else echo(task)

    ids = await enqueue(2)
    chosen = agent if agent in (takes_nothing, takes_nothing_async) else mixed
    _, attempts, _ = await run_all(ids, chosen)
    assert attempts[0].status is AttemptStatus.FAILED
    assert attempts[0].failure.kind is FailureKind.AGENT
    if chosen is mixed:
        assert attempts[1].status is AttemptStatus.SUCCEEDED


async def test_a_keyboard_interrupt_of_the_agents_own_is_data(enqueue, run_all):
    async def agent(task):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        _, (attempt,), _ = await run_all(await enqueue(), agent)
    finally:
        signal.signal(signal.SIGINT, before)
    assert attempt.failure.type == "builtins.KeyboardInterrupt"


async def test_no_reward_is_asked_for_a_failed_agent(enqueue, run_all):
    asked = []

    async def score(record, output):
        asked.append(record)
        return []

    await run_all(await enqueue(), exit_sync, score)
    assert asked == []


async def test_many_equal_failures_are_logged_once_and_without_their_message(
    enqueue, run_all, caplog
):
    def agent(task):
        raise ValueError("the secret prompt")

    with caplog.at_level(logging.INFO):
        await run_all(await enqueue(100), agent)
    assert len([r for r in caplog.records if "builtins.ValueError" in r.getMessage()]) == 1
    assert "secret" not in caplog.text


async def test_a_failure_is_retried_under_a_new_fence_if_the_limits_say_so(
    store, enqueue, run_all, gateway
):
    def agent(task):
        if len(gateway.opened) == 1:
            raise ConnectionError
        return "ok"

    limits = {"max_attempts": 2, "retry_on": (FailureKind.AGENT,)}
    _, (attempt,), _ = await run_all(await enqueue(**limits), agent)
    assert (attempt.fence, attempt.status, attempt.output) == (2, AttemptStatus.SUCCEEDED, "ok")


async def test_an_async_agent_past_its_deadline_is_cancelled(enqueue, run_all):
    cancelled = []

    async def agent(task):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(task.id)
            raise

    runner, (attempt,), _ = await run_all(await enqueue(timeout_s=0.2), agent)
    assert attempt.status is AttemptStatus.TIMED_OUT
    assert attempt.failure.kind is FailureKind.DEADLINE
    assert "within 0.2 s" in attempt.failure.message
    assert cancelled == ["0"]
    assert runner.losses.counts == {}


async def test_a_reward_shares_the_attempts_deadline(enqueue, run_all):
    async def score(record, output):
        await asyncio.Event().wait()

    _, (attempt,), _ = await run_all(await enqueue(timeout_s=0.2), echo, score)
    assert attempt.status is AttemptStatus.TIMED_OUT
    assert attempt.output == {"answer": 0}


async def test_a_hung_thread_is_abandoned_and_costs_no_capacity(store, run_all, caplog):
    release = threading.Event()
    late = threading.Event()

    def agent(task):
        if task.input > 1:
            return echo(task)
        release.wait()
        emit_reward(1.0)  # refused: the attempt has ended
        late.set()
        return None

    rollouts = [
        Rollout(
            id=f"rollout_{number}",
            task=Task(id=str(number), input=number),
            run_id="run",
            limits=Limits(timeout_s=0.3 if number < 2 else 600.0),
        )
        for number in range(4)
    ]
    await store.enqueue(rollouts)
    ids = [rollout.id for rollout in rollouts]
    runner, attempts, spans = await run_all(ids, agent, concurrency=2, grace_s=0.05)
    assert [attempt.status for attempt in attempts] == [
        AttemptStatus.TIMED_OUT,
        AttemptStatus.TIMED_OUT,
        AttemptStatus.SUCCEEDED,
        AttemptStatus.SUCCEEDED,
    ]
    told = [each for each in caplog.records if "could not be stopped" in each.getMessage()]
    assert len(told) == 1
    assert runner.losses.counts == {"abandoned_thread": 2}
    assert runner.abandoned == 2
    release.set()
    await asyncio.to_thread(late.wait)
    theirs = {f"agl-{attempt.id}" for attempt in attempts}
    for thread in threading.enumerate():
        if thread.name in theirs:
            await asyncio.to_thread(thread.join)
    assert runner.abandoned == 0
    assert runner.losses.counts == {"abandoned_thread": 2, "late_reward": 2}
    assert spans == []


async def test_a_hung_thread_of_a_reward_is_abandoned_too(enqueue, run_all):
    release = threading.Event()

    async def score(record, output):
        await in_thread(release.wait, name="agl-reward")
        return []

    runner, (attempt,), _ = await run_all(
        await enqueue(timeout_s=0.2), echo_async, score, grace_s=0.05
    )
    assert attempt.status is AttemptStatus.TIMED_OUT
    assert runner.losses.counts == {"abandoned_thread": 1}
    assert runner.abandoned == 1
    release.set()
    for thread in threading.enumerate():
        if thread.name == "agl-reward":
            await asyncio.to_thread(thread.join)
    assert runner.abandoned == 0


async def test_a_task_that_will_not_be_cancelled_is_abandoned(enqueue, run_all):
    release = Signal()

    async def agent(task):
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        emit_reward(1.0)

    runner, (attempt,), _ = await run_all(await enqueue(timeout_s=0.1), agent, grace_s=0.05)
    assert attempt.status is AttemptStatus.TIMED_OUT
    assert runner.abandoned == 1
    release.set()
    while runner.abandoned:  # noqa: ASYNC110  the task ends in the next turns of its loop
        await asyncio.sleep(0.001)
    assert runner.losses.counts == {"abandoned_task": 1, "late_reward": 1}


async def test_concurrency_is_reached_and_never_exceeded(enqueue, run_all):
    running, most, full = 0, 0, Signal()

    async def agent(task):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await full.wait()
        running -= 1

    await run_all(await enqueue(7), agent, concurrency=3)
    assert most == 3


async def test_an_attempt_that_the_store_ended_is_stopped_and_not_stored(
    store, enqueue, serving, gateway
):
    started, stopped = Signal(), Signal()

    async def agent(task):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    finished = []
    options = {"heartbeat_s": 0.02, "on_finished": lambda *seen: finished.append(seen)}
    (rollout_id,) = await enqueue()
    async with serving(agent, **options) as runner:
        await started.wait()
        await store.cancel([rollout_id], reason="not needed")
        await stopped.wait()
    assert runner.losses.counts == {"revoked_attempt": 1}
    assert gateway.sealed == gateway.opened
    assert finished == []


async def test_heartbeats_keep_an_attempt_running_past_its_lease(
    store, clock, enqueue, run_all, monkeypatch
):
    beats = threading.Semaphore(0)
    heartbeat = store.heartbeat

    async def counted(ids):
        await clock.advance(0.2)
        lost = await heartbeat(ids)
        beats.release()
        return lost

    def agent(task):
        for _ in range(5):  # three heartbeats make one lease
            beats.acquire()

    monkeypatch.setattr(store, "heartbeat", counted)
    _, (attempt,), _ = await run_all(await enqueue(lease_s=0.6), agent)
    assert attempt.status is AttemptStatus.SUCCEEDED
    assert attempt.ended_at - attempt.started_at > 0.6


@pytest.mark.parametrize("store_fails", [False, True])
async def test_a_late_reward_counts_within_its_grace_or_is_counted_as_lost(
    store, enqueue, serving, monkeypatch, store_fails
):
    contexts, add_spans, offered = [], store.add_spans, asyncio.Event()

    async def watched(spans):
        offered.set()
        if store_fails:
            raise StoreError("disk full")
        return await add_spans(spans)

    async def agent(task):
        contexts.append(contextvars.copy_context())

    monkeypatch.setattr(store, "add_spans", watched)
    ids = await enqueue(reward_grace_s=60.0)
    async with serving(agent) as runner:
        await store.wait(ids, timeout_s=100)
        contexts[0].run(emit_reward, 0.5)
        await offered.wait()
    assert runner.losses.counts == ({"late_reward": 1} if store_fails else {})
    assert len(await store.spans(ids)) == (0 if store_fails else 1)


async def test_a_finish_that_comes_too_late_is_counted(store, enqueue, serving):
    started, release = Signal(), Signal()

    async def agent(task):
        started.set()
        await release.wait()

    (rollout_id,) = await enqueue()
    async with serving(agent) as runner:
        await started.wait()
        await store.cancel([rollout_id], reason="not needed")
        release.set()
    assert runner.losses.counts == {"late_attempt": 1}


async def test_an_attempt_that_the_gateway_knows_as_sealed_is_counted(
    store, enqueue, serving, gateway
):
    gateway.refuse = True
    await enqueue()
    async with serving(echo) as runner:
        while not runner.losses.counts:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert runner.losses.counts == {"late_attempt": 1}


async def test_cancelling_the_runner_releases_its_attempts(store, enqueue, gateway):
    started = [Signal() for _ in range(3)]

    async def agent(task):
        started[task.input].set()
        await asyncio.Event().wait()

    ids = await enqueue(3)
    runner = Runner(store, gateway, agent, None)
    task = asyncio.create_task(runner.run(asyncio.Event()))
    for each in started:
        await each.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ended = await store.wait(ids, timeout_s=100)
    assert {rollout.status for rollout in ended} == {RolloutStatus.CANCELLED}
    assert {rollout.attempt.failure.message for rollout in ended} == {"The runner was stopped"}
    assert sorted(gateway.sealed) == sorted(gateway.opened)
    assert not hasattr(httpx.Client.send, "__wrapped__")


async def test_cancelling_a_runner_that_waits_for_work_ends_it(store, gateway):
    task = asyncio.create_task(Runner(store, gateway, echo, None).run(asyncio.Event()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_attempts_claimed_while_the_runner_is_cancelled_are_released_too(
    store, enqueue, gateway, monkeypatch
):
    claim = store.claim
    called = []

    async def claim_and_cancel(*args, **kwargs):
        claims = await claim(*args, **kwargs)
        running.cancel()
        return claims

    ids = await enqueue(1)
    monkeypatch.setattr(store, "claim", claim_and_cancel)
    running = asyncio.create_task(Runner(store, gateway, called.append, None).run(asyncio.Event()))
    with pytest.raises(asyncio.CancelledError):
        await running
    ended = await store.wait(ids, timeout_s=100)
    assert {rollout.status for rollout in ended} == {RolloutStatus.CANCELLED}
    assert called == []


async def test_what_is_being_stored_is_stored_before_a_cancelled_runner_ends(
    store, enqueue, gateway, monkeypatch
):
    finishing, release = asyncio.Event(), asyncio.Event()
    finish = store.finish

    async def slow(*args, **kwargs):
        finishing.set()
        await release.wait()
        return await finish(*args, **kwargs)

    (rollout_id,) = await enqueue()
    monkeypatch.setattr(store, "finish", slow)
    running = asyncio.create_task(Runner(store, gateway, echo, None).run(asyncio.Event()))
    await finishing.wait()
    running.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    (rollout,) = await store.wait([rollout_id], timeout_s=100)
    assert rollout.status is RolloutStatus.SUCCEEDED


async def test_stopping_lets_attempts_in_flight_end(store, enqueue, gateway):
    started, release = Signal(), Signal()

    async def agent(task):
        started.set()
        await release.wait()
        return "done"

    ids = await enqueue(2)
    stop = asyncio.Event()
    runner = Runner(store, gateway, agent, None, RunnerOptions(concurrency=1))
    task = asyncio.create_task(runner.run(stop))
    await started.wait()
    stop.set()
    release.set()
    await task
    first, second = await store.rollouts(RolloutQuery())
    assert (first.id, first.attempt.output) == (ids[0], "done")
    assert second.status is RolloutStatus.QUEUED


async def test_observers_see_start_and_end(enqueue, run_all):
    seen = []
    _, (attempt,), spans = await run_all(
        await enqueue(),
        echo,
        scored,
        on_started=lambda rollout, attempt: seen.append((rollout.id, attempt.status)),
        on_finished=lambda rollout, attempt, spans: seen.append((attempt, spans)),
    )
    assert seen == [("rollout_000", AttemptStatus.RUNNING), (attempt, spans)]
    assert attempt.sealed


@pytest.mark.parametrize("hook", ["on_started", "on_finished"])
async def test_an_observer_that_raises_stops_the_runner(store, enqueue, gateway, hook):
    def broken(*_):
        raise LookupError("observer")

    (rollout_id,) = await enqueue()
    runner = Runner(store, gateway, echo, None, RunnerOptions(**{hook: broken}))
    with pytest.raises(LookupError, match="observer"):
        await runner.run(asyncio.Event())
    (rollout,) = await store.wait([rollout_id], timeout_s=100)
    assert rollout.status.final


async def test_a_store_that_fails_stops_the_runner(store, enqueue, gateway, monkeypatch):
    async def fail(*_, **__):
        raise StoreError("disk full")

    await enqueue()
    monkeypatch.setattr(store, "finish", fail)
    with pytest.raises(StoreError, match="disk full"):
        await Runner(store, gateway, echo, None).run(asyncio.Event())


async def test_a_heartbeat_that_fails_is_counted_and_repeated(
    store, enqueue, run_all, monkeypatch, caplog
):
    beat_again = Signal()
    failed = []

    async def heartbeat(ids):
        if not failed:
            failed.append(ids)
            raise StoreError("busy")
        beat_again.set()
        return []

    async def agent(task):
        await beat_again.wait()

    monkeypatch.setattr(store, "heartbeat", heartbeat)
    runner, (attempt,), _ = await run_all(await enqueue(), agent, heartbeat_s=0.01)
    assert attempt.status is AttemptStatus.SUCCEEDED
    assert runner.losses.counts == {"failed_heartbeat": 1}
    assert "took no heartbeat" in caplog.text


async def test_a_gateway_that_is_gone_is_the_engines_fault(enqueue, run_all, gateway):
    with FakeOpenAI() as server:
        gateway.url = server.base_url.removesuffix("/v1")
    openai = pytest.importorskip("openai")

    def agent(task):
        with openai.OpenAI(max_retries=0) as client:
            client.chat.completions.create(model="m", messages=[])

    _, (attempt,), _ = await run_all(await enqueue(), agent)
    assert attempt.failure.kind is FailureKind.ENGINE


async def test_the_deadline_reaches_the_http_calls_of_a_thread(enqueue, run_all, gateway):
    openai = pytest.importorskip("openai")
    held = asyncio.Event()

    async def before_send(answer, piece):
        await held.wait()

    async with FakeOpenAI() as server:
        server.before_send = before_send
        gateway.url = server.base_url.removesuffix("/v1")

        def agent(task):
            with openai.OpenAI(max_retries=0, timeout=600) as client:
                client.chat.completions.create(
                    model="fake-model", messages=[{"role": "user", "content": "x"}]
                )

        runner, (attempt,), spans = await run_all(await enqueue(timeout_s=0.5), agent, grace_s=10.0)
    assert attempt.status is AttemptStatus.TIMED_OUT
    assert runner.losses.counts == {}
    assert [span.status for span in spans] == ["error"]


async def test_fifty_rollouts_in_threads_and_tasks_never_mix(enqueue, run_all, gateway):
    async with FakeOpenAI() as server:
        gateway.url = server.base_url.removesuffix("/v1")

        def body(task):
            return {
                "model": "fake-model",
                "messages": [{"role": "user", "content": str(task.input)}],
            }

        def in_thread(task):
            with (
                agent_scope(f"agent {task.input}"),
                httpx.Client(timeout=60, verify=False) as client,
            ):
                for _ in range(2):
                    client.post(f"{current().llm.base_url}/chat/completions", json=body(task))
                emit_reward(task.input)

        async def in_task(task):
            with agent_scope(f"agent {task.input}"):
                async with httpx2.AsyncClient(timeout=60, verify=False) as client:
                    url = f"{current().llm.base_url}/chat/completions"
                    await asyncio.gather(*(client.post(url, json=body(task)) for _ in range(2)))
                emit_reward(task.input)

        def agent(task):
            return in_task(task) if task.input % 2 else in_thread(task)

        ids = await enqueue(50)
        _, attempts, spans = await run_all(ids, agent, concurrency=50)
        log = server.log
    assert {attempt.status for attempt in attempts} == {AttemptStatus.SUCCEEDED}
    by_attempt = {attempt.id: number for number, attempt in enumerate(attempts)}
    assert len(log) == 100
    for answered in log:
        number = answered.body["messages"][0]["content"]
        assert answered.headers["x-agl-rollout"] == f"rollout_{int(number):03}"
        assert by_attempt[answered.headers["x-agl-attempt"]] == int(number)
        assert answered.headers["x-agl-agent"] == f"agent%20{number}"
    calls = {answered.headers["x-agl-call"]: answered for answered in log}
    for span in spans:
        number = by_attempt[span.attempt_id]
        assert span.agent == f"agent {number}"
        if span.kind is SpanKind.LLM:
            answered = calls.pop(span.call_id)
            assert answered.body["messages"][0]["content"] == str(number)
        if span.reward is not None:
            assert span.reward.value == number
    assert calls == {}

"""``rollout.resume = "replay"``: a retried attempt hears again what it was told before."""

from __future__ import annotations

import asyncio
import json

import pytest
from agl_testing.attempts import CallOptions, ScriptedAttempt
from agl_testing.fake_openai import FakeReply

from agl_core import semconv
from agl_core.adapters import TrajectoryAdapter
from agl_core.clocks import new_id
from agl_core.config.loader import resolve
from agl_core.training.rollouts import RolloutPlan, RolloutSource
from agl_core.types import (
    AttemptStatus,
    Failure,
    FailureKind,
    Limits,
    Policy,
    Rollout,
    Task,
)

CALL = {"id": "call_1", "name": "look", "arguments": '{"a": 1}'}
LOST = Failure(kind=FailureKind.LOST, message="killed")
TOOL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}


class Story:
    """One rollout whose attempts end and begin again."""

    def __init__(self, world):
        self.world = world
        self.heard = {}

    async def begin(self, resume="replay", **rollout):
        self.rollout = Rollout(
            id=new_id("ro"),
            task=Task(id="t"),
            run_id="run",
            seed=7,
            limits=Limits(
                timeout_s=600.0, lease_s=600.0, max_attempts=4, retry_on=tuple(FailureKind)
            ),
            metadata={"resume": resume} if resume else {},
            **rollout,
        )
        await self.world.store.enqueue([self.rollout])
        return await self.again()

    async def again(self):
        (claim,) = await self.world.store.claim("w", timeout_s=100)
        await self.world.gateway.open(claim.rollout, claim.attempt)
        self.attempt = claim.attempt
        return claim.attempt

    async def lose(self, *, seal=True, failure=LOST, status=AttemptStatus.LOST):
        if seal:
            await self.world.gateway.seal(self.attempt.id)
        await self.world.store.finish(self.attempt.id, status=status, failure=failure)

    async def ask(self, text, agent="writer", *, headers=None, **body):
        messages = [{"role": "user", "content": text}]
        given = {**self.world.headers(self.attempt, agent), **(headers or {})}
        async with self.world.post(given, messages=messages, **body) as answer:
            assert answer.status == 200, await answer.text()
            if body.get("stream"):
                return merged(await answer.read())
            return message(await answer.json())

    async def calls(self, attempt=None):
        await self.world.gateway.seal(self.attempt.id)
        wanted = (attempt or self.attempt).id
        spans = await self.world.store.spans([self.rollout.id], attempt_id=wanted)
        return [span for span in spans if span.call is not None]

    @property
    def live(self):
        """Texts that reached the model, in order."""
        return [each.body["messages"][-1]["content"] for each in self.world.server.log]


def message(answer):
    choice = answer["choices"][0]
    assert "token_ids" not in choice
    assert choice["logprobs"] is None
    return choice["message"], choice["finish_reason"]


def merged(data):
    found, reason, calls = {"role": "assistant", "content": None}, None, []
    lines = [line[6:] for line in data.decode().split("\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    for chunk in map(json.loads, lines):
        assert "prompt_token_ids" not in chunk
        for row in chunk["choices"]:
            delta = row["delta"]
            if delta.get("content"):
                found["content"] = (found["content"] or "") + delta["content"]
            calls += delta.get("tool_calls") or []
            reason = row["finish_reason"] or reason
    return found, reason, calls


def facts(span):
    """What training takes of a call."""
    call = span.call
    served = (call.policy, call.policy_version, call.trainable, call.response_id)
    said = (call.agent, call.messages, call.choices, call.prompt_token_ids)
    return (*served, *said, call.sampling, call.logprobs_mode)


@pytest.fixture
async def story(world):
    return Story(world)


async def test_equal_requests_are_answered_from_the_record_exactly(world, story):
    world.server.script = lambda body: f"{body['messages'][-1]['content']} {len(story.live)}"
    first = await story.begin()
    heard = [await story.ask("a"), await story.ask("b", temperature=0.7), await story.ask("a")]
    judged = await story.ask("score", "judge")
    await story.lose()
    second = await story.again()
    assert [await story.ask("a"), await story.ask("b", temperature=0.7)] == heard[:2]
    assert await story.ask("score", "judge") == judged
    assert await story.ask("a") == heard[2] != heard[0]
    assert story.live == ["a", "b", "a", "score"]
    await world.route("trained", ("writer", "planner", "@*"), trainable=True, version=9)
    await story.ask("c")
    await story.ask("b", temperature=0.7)
    assert story.live[4:] == ["c", "b"]
    told, retold = await story.calls(first), await story.calls(second)
    key = str
    assert sorted(map(facts, told), key=key) == sorted(map(facts, retold[:4]), key=key)
    assert [span.attributes.get(semconv.AGL_REPLAYED) for span in retold] == [True] * 4 + [None] * 2
    assert {span.call.policy_version for span in retold if span.call.agent == "writer"} == {0, 9}
    assert world.gateway.losses.counts == {"replayed_calls": 4}
    assert {s.call.id for s in told}.isdisjoint(s.call.id for s in retold)
    usage = [semconv.GEN_AI_USAGE_INPUT_TOKENS, semconv.GEN_AI_USAGE_OUTPUT_TOKENS]
    assert [told[0].attributes[k] for k in usage] == [retold[0].attributes[k] for k in usage]


@pytest.mark.parametrize(("then", "now"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("agent", ["writer", "judge"])
async def test_however_it_is_delivered(world, story, then, now, agent):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    world.server.script = lambda body: FakeReply(tool_calls=(CALL,)) if "tools" in body else "héllo"
    first = await story.begin()
    told = [
        await story.ask("a", agent, stream=then),
        await story.ask("b", agent, stream=then, tools=tools),
    ]
    await story.lose()
    await story.again()
    retold = [
        await story.ask("a", agent, stream=now),
        await story.ask("b", agent, stream=now, tools=tools),
    ]
    assert len(story.live) == 2
    assert retold[0][0]["content"] == told[0][0]["content"] == "héllo"
    assert [each[1] for each in retold] == [each[1] for each in told] == ["stop", "tool_calls"]
    calls = retold[1][2] if now else retold[1][0]["tool_calls"]
    assert [{k: c[k] for k in ("id", "type", "function")} for c in calls] == [TOOL]
    before = [facts(span) for span in await story.calls(first)]
    after = await story.calls()
    assert [facts(span) for span in after] == before
    assert [span.call.streamed for span in after] == [now, now]
    assert all(span.call.complete and not span.call.error for span in after)


async def test_from_the_first_divergence_on_everything_is_live(story):
    await story.begin()
    for text in "abc":
        await story.ask(text)
    await story.lose()
    await story.again()
    await story.ask("a")
    await story.ask("x", "planner")
    await story.ask("b")
    assert story.live == ["a", "b", "c", "x", "b"]


async def test_parallel_branches_are_matched_whatever_their_order(story):
    await story.begin()
    texts = [f"branch {number % 3}" for number in range(9)]
    heard = await asyncio.gather(*(story.ask(text) for text in texts))
    await story.lose()
    await story.again()
    retold = await asyncio.gather(*(story.ask(text) for text in reversed(texts)))
    assert sorted(map(str, retold)) == sorted(map(str, heard))
    assert len(story.live) == 9
    await story.ask("branch 0")
    assert len(story.live) == 10


@pytest.mark.parametrize(
    "change",
    [
        {"agent": "planner"},
        {"temperature": 0.5},
        {"seed": 3},
        {"logprobs": True},
        {"headers": {"x-agl-trainable": "0"}},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_what_is_not_equal_is_asked_live(story, change):
    await story.begin()
    await story.ask("a")
    await story.lose()
    await story.again()
    if "logprobs" in change:
        given = story.world.headers(story.attempt)
        body = {"messages": [{"role": "user", "content": "a"}], **change}
        async with story.world.post(given, **body) as answer:
            entries = (await answer.json())["choices"][0]["logprobs"]["content"]
        assert any(entry["token"] for entry in entries)
    else:
        await story.ask("a", **change)
    assert story.live == ["a", "a"]
    assert "replayed_calls" not in story.world.gateway.losses.counts


@pytest.mark.parametrize(
    ("resume", "failure", "status"),
    [
        (None, LOST, AttemptStatus.LOST),
        ("fresh", LOST, AttemptStatus.LOST),
        ("replay", Failure(kind=FailureKind.AGENT, message="m"), AttemptStatus.FAILED),
    ],
)
async def test_nothing_else_is_replayed(story, resume, failure, status):
    first = await story.begin(resume)
    await story.ask("a")
    await story.lose(failure=failure, status=status)
    await story.again()
    await story.ask("a")
    assert story.live == ["a", "a"]
    digested = [semconv.AGL_REQUEST_DIGEST in span.attributes for span in await story.calls(first)]
    assert digested == [resume == "replay"]


async def test_a_failed_engine_is_gone_on_from(story):
    await story.begin()
    await story.ask("a")
    failure = Failure(kind=FailureKind.ENGINE, message="m")
    await story.lose(failure=failure, status=AttemptStatus.FAILED)
    await story.again()
    await story.ask("a")
    assert story.live == ["a"]


async def test_calls_that_broke_off_are_no_record(world, story):
    await story.begin()
    world.server.fail(1, status=500)
    given = world.headers(story.attempt)
    async with world.post(given, messages=[{"role": "user", "content": "a"}]) as answer:
        assert answer.status == 500
    await story.lose()
    await story.again()
    await story.ask("a")
    assert story.live == ["a"]


async def test_records_still_in_memory_are_replayed_too(make_world):
    from agl_core.gateway._app import GatewayOptions
    from agl_core.gateway._recording import RecordingOptions

    slow = RecordingOptions(interval_s=60.0, settle_s=60.0)
    world = await make_world(gateway=GatewayOptions(recording=slow))
    story = Story(world)
    first = await story.begin()
    heard = await story.ask("a")
    await story.lose(seal=False)  # its runner was killed: nobody seals it
    await story.again()
    assert await story.ask("a") == heard
    assert story.live == ["a"]
    assert await story.calls(first) == []
    assert world.gateway.losses.counts == {"late_records": 1, "replayed_calls": 1}


async def test_a_call_that_is_sent_again_is_answered_as_before(story):
    await story.begin()
    heard = [await story.ask("a"), await story.ask("a")]
    await story.lose()
    await story.again()
    twice = [await story.ask("a", headers={"x-agl-call": "call_9"}) for _ in range(2)]
    assert twice == [heard[0], heard[0]]
    assert await story.ask("a") == heard[1]
    assert story.live == ["a", "a"]


async def test_a_third_attempt_goes_on_from_the_second(story):
    await story.begin()
    await story.ask("a")
    await story.lose()
    await story.again()
    await story.ask("a")
    await story.ask("b")
    await story.lose()
    await story.again()
    await story.ask("a")
    await story.ask("b")
    assert story.live == ["a", "b"]


async def test_training_takes_the_recorded_tokens_of_replayed_calls(world, story):
    """Ids, log-probabilities and version are those that were sampled, so the loss is right."""
    await world.route("trained", ("writer",), trainable=True, version=3)
    first = await story.begin(group_id="g")
    await story.ask("a")
    await story.lose()
    second = await story.again()
    await world.route("trained", ("writer",), trainable=True, version=4)
    await story.ask("a")
    policies = [Policy(name="trained", agents=("writer",), trainable=True)]
    adapter = TrajectoryAdapter(["writer"], policies=policies, channel_weights={})
    triplets = []
    for attempt in (first, second):
        (span,) = await story.calls(attempt)
        script = ScriptedAttempt()
        script.rollout, script.attempt = story.rollout, attempt
        script.client_span("writer", call_id=span.call.id, options=CallOptions(run="run_1"))
        script.spans.append(span)
        script.reward(1.0)
        (path,) = adapter.adapt(script.record()).trajectories["writer"]
        triplets += path.calls
    (sampled,) = world.server.log
    (choice,) = sampled.choices
    assert len(triplets) == 2
    for triplet in triplets:
        assert triplet.response_ids.tolist() == choice.token_ids
        assert triplet.logprobs.tolist() == choice.logprobs
        assert triplet.prompt_ids.tolist() == sampled.prompt_token_ids
        assert triplet.policy_version == 3


def test_the_configuration_reaches_every_rollout():
    plan = RolloutPlan(tasks=[Task(id="t")], samples=1, mode="train", step=0, resources_version=1)
    for resume, expected in (("replay", "replay"), ("fresh", None)):
        config = resolve({"model": "m", "agents": ["a"], "rollout": {"resume": resume}})
        (rollout,) = RolloutSource(None, config).make(plan)
        assert rollout.metadata.get("resume") == expected

from __future__ import annotations

import asyncio
import inspect
import math
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest

from agl_core import semconv
from agl_core.errors import ConfigError, RewardError
from agl_core.tracing import (
    Recorder,
    agent_scope,
    current_scope,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    emit_tool_call,
    enter,
    operation,
    reward_value,
    trace,
)
from agl_core.types import RewardTarget, Score, Span, SpanKind
from tests.core.tracing.scopes import open_scope


@pytest.fixture
def recorder(make_context):
    context = make_context()
    with enter(context):
        yield context.recorder


def rewards(recorder: Recorder):
    return [span.reward for span in recorder.snapshot() if span.reward is not None]


def test_everything_is_a_no_op_outside_a_rollout():
    emit_reward("not even a number", call="a", agent="b")
    emit_message("hello")
    emit_object(object())
    emit_tool_call("search")
    emit_exception(ValueError("x"))
    with operation("step") as scope, agent_scope("writer"):
        assert scope is None
        assert current_scope() is None


@pytest.mark.parametrize(
    ("value", "number"),
    [(1, 1.0), (0.5, 0.5), (True, 1.0), (False, 0.0), (Fraction(1, 4), 0.25), (Decimal(2), 2.0)],
)
def test_a_reward_is_any_single_finite_number(recorder, value, number):
    emit_reward(value)
    (reward,) = rewards(recorder)
    assert (reward.value, reward.channel, reward.target) == (number, "main", RewardTarget())
    assert type(reward.value) is float


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, "1.0", None, b"1", [1.0], {"main": 1}, 1j, 10**400]
)
def test_any_other_reward_is_an_error_that_names_value_and_fix(recorder, value):
    with pytest.raises(RewardError, match="give one finite number") as raised:
        emit_reward(value)
    assert repr(value) in str(raised.value)
    assert rewards(recorder) == []


def test_a_reward_says_why(recorder):
    emit_reward(0.2, why="the price is missing")
    emit_reward(Score(0.2, "the unit is missing"), "style")
    emit_reward(Score(0.2, "not this"), why="but this")
    emit_reward(0.2, why=" \n")
    given = rewards(recorder)
    assert [(reward.value, type(reward.value)) for reward in given] == [(0.2, float)] * 4
    assert [reward.why for reward in given] == [
        "the price is missing",
        "the unit is missing",
        "but this",
        "",
    ]


def test_array_scalars_are_numbers_and_arrays_are_not():
    numpy = pytest.importorskip("numpy")
    assert reward_value(numpy.float32(0.5), source="f") == 0.5
    assert reward_value(numpy.bool_(True), source="f") == 1.0
    with pytest.raises(RewardError, match=r"f gave the reward array\(\[1, 2\]\)"):
        reward_value(numpy.array([1, 2]), source="f")


def test_a_reward_names_its_target(recorder):
    emit_reward(1, "style", call="call_1", choice=0)
    emit_reward(1, agent="writer")
    emit_reward(1, agent_run="run_1")
    emit_reward(1, agent="writer", agent_run="run_1")
    assert [reward.target for reward in rewards(recorder)] == [
        RewardTarget(call="call_1", choice=0),
        RewardTarget(agent="writer"),
        RewardTarget(agent_run="run_1"),
        RewardTarget(agent="writer", agent_run="run_1"),
    ]
    assert rewards(recorder)[0].channel == "style"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"call": "c", "agent": "a"}, "call='c'.*agent='a'"),
        ({"call": "c", "agent_run": "r"}, "call='c'.*agent_run='r'"),
        ({"choice": 0}, "a choice needs its call"),
        ({"call": "c", "choice": -1}, "index of a choice"),
        ({"call": "c", "choice": True}, "index of a choice"),
        ({"call": "c", "choice": "1"}, "index of a choice"),
        ({"agent": 3}, "agent=3: give it as text"),
        ({"agent_run": 3}, "agent_run=3: give it as text"),
        ({"channel": None}, "channel=None: give it as text"),
        ({"why": None}, "why=None: give it as text"),
        ({"why": ["a"]}, r"why=\['a'\]: give it as text"),
    ],
)
def test_an_ambiguous_target_is_an_error(recorder, target, message):
    with pytest.raises(RewardError, match=message):
        emit_reward(1.0, **target)
    assert rewards(recorder) == []


class Word(str):
    __slots__ = ()


class Nameless:
    def __str__(self):
        raise TypeError("no name")


def test_whatever_is_given_as_a_name_every_store_can_read_it_again(recorder):
    for name in (7, None, Nameless(), Word("writer")):
        with agent_scope(name, run_id=5), operation(name):
            emit_object(1, name=name)
            emit_reward(1.0, Word("main"), agent=Word("writer"))
    spans = recorder.drain()
    decoded = msgspec.json.decode(msgspec.json.encode(spans), type=list[Span])
    assert decoded == spans
    agents = [span for span in spans if span.kind is SpanKind.AGENT]
    assert [span.agent for span in agents][:2] == ["7", "None"]
    aimed_at = [span.reward.target.agent for span in spans if span.reward is not None]
    assert {agents[3].agent} == {*aimed_at} == {"writer"}
    assert {span.agent_run_id for span in agents} == {"5"}


def test_messages_objects_tools_and_exceptions_are_spans(recorder):
    with agent_scope("writer"):
        emit_message("thinking", role="assistant")
        emit_object({"a": (1, 2)}, name="plan")
        emit_tool_call("search", {"q": "x"}, ["hit"], tool_call_id="t1")
        emit_tool_call("search", error="timed out")
        try:
            int("bad \ud800")
        except ValueError as error:
            emit_exception(error)
    agent, message, plan, tool, failed, error = recorder.drain()
    assert {span.parent_id for span in (message, plan, tool, failed, error)} == {agent.id}
    assert {span.agent for span in (message, plan, tool, failed, error)} == {"writer"}
    content = {"role": "assistant", "content": "thinking"}
    assert message.attributes == {semconv.AGL_MESSAGE: content}
    assert (plan.name, plan.attributes) == ("plan", {semconv.AGL_OBJECT: {"a": [1, 2]}})
    assert tool.kind is SpanKind.TOOL
    assert tool.attributes[semconv.GEN_AI_TOOL_ARGUMENTS] == {"q": "x"}
    assert tool.attributes[semconv.GEN_AI_TOOL_RESULT] == ["hit"]
    assert tool.attributes[semconv.GEN_AI_TOOL_CALL_ID] == "t1"
    assert (failed.status, failed.error) == ("error", "timed out")
    assert error.status == "error"
    assert error.attributes[semconv.EXCEPTION_TYPE] == "builtins.ValueError"
    assert "int(" in error.attributes[semconv.EXCEPTION_STACKTRACE]


def test_an_agent_scope_names_the_agent_of_everything_inside(recorder):
    with agent_scope("judge", trainable=False) as judge:
        assert (judge.agent, judge.trainable) == ("judge", False)
        with operation("compare", round=1) as step:
            assert (step.agent, step.agent_run_id) == ("judge", judge.span_id)
    assert current_scope() is None
    agent, step = recorder.drain()
    assert (agent.kind, agent.agent, agent.agent_run_id) == (SpanKind.AGENT, "judge", agent.id)
    assert (step.kind, step.parent_id, step.attributes) == (
        SpanKind.OPERATION,
        agent.id,
        {"round": 1},
    )


def test_each_use_is_a_run_and_a_given_run_is_continued(recorder):
    for run_id in (None, None, "first"):
        with agent_scope("writer", run_id=run_id):
            pass
    one, two, three = [span.agent_run_id for span in recorder.drain()]
    assert one != two
    assert three == "first"


@agent_scope("writer")
def plain(fail=False):
    if fail:
        raise KeyError("x")
    return current_scope().agent


@agent_scope("writer")
async def coroutine(fail=False):
    await asyncio.sleep(0)
    return plain(fail)


@agent_scope("writer")
def generator(fail=False):
    got = yield current_scope().agent
    with agent_scope("inner"):
        again = yield (got, current_scope().agent)
    yield (again, plain(fail))
    return "done"


@agent_scope("writer")
async def async_generator(fail=False):
    try:
        got = yield current_scope().agent
    except LookupError:
        got = "thrown"
    yield (got, current_scope().agent)
    yield plain(fail)


def test_decorated_functions_keep_their_kind_and_name():
    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isgeneratorfunction(generator)
    assert inspect.isasyncgenfunction(async_generator)
    assert plain.__name__ == "plain"


async def test_every_kind_of_function_runs_inside_its_scope(recorder):
    assert plain() == "writer"
    assert await coroutine() == "writer"
    assert current_scope() is None
    assert {span.name for span in recorder.drain()} == {"writer"}


def test_a_generator_has_its_scope_only_while_its_body_runs(recorder):
    outside = open_scope("operation", span_id="o")
    steps = generator()
    assert next(steps) == "writer"
    assert current_scope() is outside
    assert steps.send("a") == ("a", "inner")
    assert current_scope() is outside
    assert steps.send("b") == ("b", "writer")
    with pytest.raises(StopIteration) as stop:
        next(steps)
    assert stop.value.value == "done"
    assert current_scope() is outside
    assert {span.status for span in recorder.drain()} == {"ok"}


async def test_an_async_generator_has_its_scope_only_while_its_body_runs(recorder):
    steps = async_generator()
    assert await steps.__anext__() == "writer"
    assert current_scope() is None
    assert await steps.athrow(LookupError()) == ("thrown", "writer")
    assert current_scope() is None
    assert [item async for item in steps] == ["writer"]
    assert [span.status for span in recorder.drain()] == ["ok", "ok"]


async def test_generators_closed_early_end_their_spans(recorder):
    steps = generator()
    next(steps)
    steps.close()
    more = async_generator()
    await more.__anext__()
    await more.aclose()
    assert [span.status for span in recorder.drain()] == ["ok", "ok"]


async def test_exceptions_pass_unchanged_and_end_spans_as_errors(recorder):
    with pytest.raises(KeyError, match="x"), operation("step"):
        plain(fail=True)
    with pytest.raises(KeyError, match="x"):
        await coroutine(fail=True)
    with pytest.raises(KeyError, match="x"):
        list(generator(fail=True))
    with pytest.raises(KeyError, match="x"):
        [item async for item in async_generator(fail=True)]
    spans = [span for span in recorder.drain() if span.name != "inner"]
    assert {span.status for span in spans} == {"error"}
    assert {span.error for span in spans} == {"KeyError: 'x'"}
    assert current_scope() is None


async def test_decorated_functions_run_bare_outside_a_rollout():
    @operation("step")
    def steps():
        yield 1
        return 2

    @operation("step")
    async def async_steps():
        yield 1

    @operation("step")
    async def wait():
        return 3

    assert list(steps()) == [1]
    assert [item async for item in async_steps()] == [1]
    assert await wait() == 3


def test_trace_records_outside_a_rollout_under_a_named_root():
    with trace("offline", {"q": 1}) as recorder:
        emit_reward(1.0)
        with agent_scope("writer"):
            pass
    root, reward, agent = recorder.snapshot()
    assert (root.name, root.attributes) == ("offline", {semconv.AGL_INPUT: {"q": 1}})
    assert {reward.parent_id, agent.parent_id} == {root.id}
    assert root.status == "ok"
    emit_message("after")
    assert len(recorder.drain()) == 3


def test_trace_inside_a_rollout_joins_the_attempt(recorder):
    def fail():
        with trace("part") as same:
            assert same is recorder
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fail()
    (root,) = recorder.drain()
    assert (root.name, root.status, root.error) == ("part", "error", "ValueError: boom")
    assert semconv.AGL_INPUT not in root.attributes
    assert "boom" in root.attributes[semconv.EXCEPTION_STACKTRACE]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: emit_tool_call("search", model="m"), "'model'; it takes name, arguments, result"),
        (emit_tool_call, "missing a required argument: 'name'"),
        (lambda: emit_object(1, nam="x"), "'nam'; it takes value, name"),
        (lambda: emit_message("x", "user"), "emit_message was called wrongly"),
        (emit_exception, "'error'"),
    ],
)
def test_a_wrong_call_is_an_error(call, reason):
    """G16: a typed error, inside and outside of a rollout."""
    with pytest.raises(ConfigError) as caught:
        call()

    assert reason in str(caught.value)

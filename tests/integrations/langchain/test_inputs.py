"""Errors, bad input and edited histories: they arrive as they are, and nothing wrong is trained."""

import asyncio
from contextlib import aclosing

import pytest
from agl_doctor._continuity import breaks
from agl_langchain._integration import LangChainIntegration
from agl_testing._captured import check_identity, check_tokens, triplets
from agl_testing.bench import Bench
from agl_testing.fake_openai import FakeOptions, FakeReply
from agl_testing.scenario import ANSWER, PLANNER, SYSTEM, TOOL, TOOL_RESULT, WRITER
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call, wrap_tool_call
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage, trim_messages
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from pydantic import ValidationError

from agl_core import semconv
from agl_core.errors import CaptureError
from agl_core.tracing import agent_scope
from agl_core.types import SpanKind

ASKED = {"messages": [HumanMessage("What is the price of tea?")]}
MANY = 10_000_000


def lookup(item: str) -> str:
    """Look up what an item costs."""
    return TOOL_RESULT


def of_kind(played, kind):
    return [span for span in played.spans if span.kind is kind and span.call is None]


def said(state):
    return state["messages"][-1].text


def asking(*arguments):
    """The model looks up with these arguments, turn by turn, before it says the answer."""
    left = list(arguments)

    def script(body):
        if not left:
            return FakeReply(text=ANSWER)
        return FakeReply(tool_calls=[{"name": TOOL, "arguments": left.pop(0)}])

    return script


async def asked(speaker, form, config=None):
    if form == "ainvoke":
        return await speaker.ainvoke(ASKED, config)
    return await asyncio.to_thread(speaker.invoke, ASKED, config)


def checked(played, bench):
    if played.error is not None:
        raise played.error
    check_tokens(played, bench.fake.log)
    return check_identity(played)


@pytest.fixture
async def speak(chat):
    """Makes an agent of `create_agent`, and closes what it asked over."""
    models = []

    def agent(job, name, *tools, called=None, middleware=(), **fields):
        models.append(chat(job, called or name, **fields))
        return create_agent(
            models[-1], tools=tools, name=name, system_prompt=SYSTEM, middleware=middleware
        )

    yield agent
    for model in models:
        await model.http_async_client.aclose()


async def test_a_cancelled_task_ends_its_spans_and_leaves_the_next_agent_alone(bench, speak):
    asked = asyncio.Event()

    async def hold(answer, position):
        asked.set()
        await asyncio.Event().wait()

    async def program(job):
        bench.fake.before_send = hold
        task = asyncio.create_task(speak(job, WRITER).ainvoke(ASKED))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        bench.fake.before_send = None
        return said(await speak(job, PLANNER).ainvoke(ASKED))

    played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    agents = [(span.agent, span.status) for span in of_kind(played, SpanKind.AGENT)]
    assert agents == [(WRITER, "error"), (PLANNER, "ok")]
    assert of_kind(played, SpanKind.AGENT)[0].error.startswith("CancelledError")
    assert {span.status for span in played.spans if span.agent == WRITER} == {"error"}
    assert [(call.agent, call.complete) for call in played.calls] == [
        (WRITER, False),
        (PLANNER, True),
    ]
    assert [each.agent for each in triplets(played, "*")] == [PLANNER]


@pytest.fixture
def held(bench):
    """The server has said its first words, and holds the rest back."""

    async def hold(answer, position):
        if position > 2:
            await asyncio.Event().wait()

    bench.fake.before_send = hold


def is_abandoned(played):
    assert played.error is None
    assert [(call.agent, call.complete) for call in played.calls] == [(WRITER, False)]
    with pytest.raises(CaptureError, match="incomplete"):
        played.adapt(WRITER)
    assert triplets(played, PLANNER) == []


@pytest.mark.usefixtures("held")
async def test_an_agents_stream_that_is_left_is_incomplete_and_never_trained(bench, speak):
    async def program(job):
        speaker = speak(job, WRITER, streaming=True)
        async with aclosing(speaker.astream(ASKED, stream_mode="messages")) as chunks:
            await anext(chunks)

    is_abandoned(await bench.one(program))


@pytest.mark.usefixtures("held")
async def test_a_models_stream_that_is_left_is_incomplete_and_never_trained(bench, chat):
    def program(job):
        with agent_scope(WRITER):
            chunks = chat(job, WRITER).stream(ASKED["messages"])
            next(chunks)
            chunks.close()

    is_abandoned(await bench.one(program))


@pytest.mark.parametrize("arguments", ["{tea", '{"item": "tea"', "null and void"])
async def test_arguments_that_are_no_json_reach_no_tool_and_stay_as_they_were(
    bench, speak, arguments
):
    bench.fake.script = asking(arguments)
    played = await bench.one(lambda job: said(speak(job, PLANNER, lookup).invoke(ASKED)))
    checked(played, bench)
    (call,) = played.calls
    (choice,) = call.choices
    assert choice.tool_calls[0]["function"]["arguments"] == arguments
    (unused,) = of_kind(played, SpanKind.TOOL)
    assert (unused.agent, unused.name, unused.status) == (PLANNER, TOOL, "error")
    assert unused.attributes[semconv.GEN_AI_TOOL_ARGUMENTS] == arguments
    assert len(triplets(played, PLANNER)) == 1


async def test_a_call_of_an_unknown_tool_is_a_failed_one_beside_those_that_ran(bench, speak):
    asked_for = [
        {"name": "nope", "arguments": "{}"},
        {"name": TOOL, "arguments": '{"item": "tea"}'},
    ]
    replies = [FakeReply(tool_calls=asked_for)]
    bench.fake.script = lambda _: replies.pop() if replies else FakeReply(text=ANSWER)
    played = await bench.one(lambda job: said(speak(job, PLANNER, lookup).invoke(ASKED)))
    checked(played, bench)
    used = {span.name: span for span in of_kind(played, SpanKind.TOOL)}
    assert {name: (span.agent, span.status) for name, span in used.items()} == {
        "nope": (PLANNER, "error"),
        TOOL: (PLANNER, "ok"),
    }
    assert "nope is not a valid tool" in used["nope"].error
    assert used["nope"].attributes[semconv.GEN_AI_TOOL_ARGUMENTS] == {}


async def test_a_failed_call_without_a_text_is_a_failed_one(bench, speak):
    @wrap_tool_call
    async def refuse(request, handler):
        call_id = request.tool_call["id"]
        return ToolMessage("", tool_call_id=call_id, name=TOOL, status="error")

    async def program(job):
        speaker = speak(job, PLANNER, lookup, middleware=[refuse])
        return said(await speaker.ainvoke(ASKED))

    bench.fake.script = asking('{"item": "tea"}')
    played = await bench.one(program)
    checked(played, bench)
    (used,) = of_kind(played, SpanKind.TOOL)
    assert (used.name, used.agent, used.status, used.error) == (TOOL, PLANNER, "error", "")


async def test_a_failed_result_in_a_history_that_was_given_is_no_call_of_this_attempt(bench, speak):
    given = [
        *ASKED["messages"],
        AIMessage("", tool_calls=[{"name": TOOL, "args": {"item": "tea"}, "id": "call_0"}]),
        ToolMessage("closed", tool_call_id="call_0", name=TOOL, status="error"),
    ]

    def program(job):
        history = RunnableLambda(lambda messages: messages).invoke(given)
        return said(speak(job, PLANNER, lookup).invoke({"messages": history}))

    played = await bench.one(program)
    checked(played, bench)
    assert of_kind(played, SpanKind.TOOL) == []


async def test_a_name_that_is_no_text_is_its_text(bench, speak):
    played = await bench.one(lambda job: said(speak(job, 7, called=WRITER).invoke(ASKED)))
    assert played.output == ANSWER
    assert [call.agent for call in played.calls] == ["7"]
    assert len(triplets(played, "7")) == 1


async def test_arguments_that_are_no_object_are_the_frameworks_own_error(bench, speak):
    bench.fake.script = asking("[1]")
    played = await bench.one(lambda job: speak(job, PLANNER, lookup).invoke(ASKED))
    assert isinstance(played.error, ValidationError)
    (llm,) = of_kind(played, SpanKind.LLM)
    assert (llm.agent, llm.status) == (PLANNER, "error")
    assert llm.attributes[semconv.EXCEPTION_TYPE].endswith("ValidationError")


async def test_arguments_that_do_not_fit_are_told_to_the_model(bench, speak):
    bench.fake.script = asking('{"thing": "tea"}')
    played = await bench.one(lambda job: said(speak(job, PLANNER, lookup).invoke(ASKED)))
    checked(played, bench)
    assert played.output == ANSWER
    (used,) = of_kind(played, SpanKind.TOOL)
    assert (used.agent, used.status) == (PLANNER, "error")
    assert "item" in used.error


async def test_an_image_is_recorded_and_no_sample(bench, speak):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    message = HumanMessage([{"type": "text", "text": "What is it?"}, image])
    played = await bench.one(lambda job: said(speak(job, WRITER).invoke({"messages": [message]})))
    checked(played, bench)
    assert played.output == ANSWER
    sent = played.calls[0].messages[-1]["content"]
    assert [part["type"] for part in sent] == ["text", "image_url"]
    with pytest.raises(CaptureError, match="image_url"):
        played.adapt(WRITER)


async def test_ten_megabytes_from_a_tool_arrive_whole_and_are_cut_on_the_span(bench, speak):
    @tool(return_direct=True)
    def lookup(item: str) -> str:
        """Look up what an item costs."""
        return "x" * MANY

    played = await bench.one(lambda job: said(speak(job, PLANNER, lookup).invoke(ASKED)))
    checked(played, bench)
    assert played.output == "x" * MANY
    (used,) = of_kind(played, SpanKind.TOOL)
    assert used.attributes[semconv.GEN_AI_TOOL_RESULT].startswith("xxx")
    assert sum(len(str(span.attributes)) for span in played.spans) < MANY / 10


@pytest.mark.parametrize("name", ["shop/writer", "作家 é", "a\nb", "%2F", "100 %", "a" * 300])
async def test_names_of_every_kind_arrive_unchanged(bench, speak, name):
    played = await bench.one(lambda job: said(speak(job, name, called=WRITER).invoke(ASKED)))
    assert (played.output, played.error) == (ANSWER, None)
    check_identity(played, names={WRITER: name})
    assert [each.agent for each in triplets(played, name)] == [name]


async def test_two_agents_of_one_name_at_the_same_time_are_two_runs(bench, speak):
    async def program(job):
        speakers = [speak(job, WRITER, lookup) for _ in range(2)]
        return [
            said(state) for state in await asyncio.gather(*(a.ainvoke(ASKED) for a in speakers))
        ]

    bench.interleave(2)
    played = await bench.one(program)
    spans = checked(played, bench)
    assert played.output == [ANSWER, ANSWER]
    tools = of_kind(played, SpanKind.TOOL)
    runs = [span.agent_run_id for span in spans.values()]
    assert sorted(runs.count(run) for run in set(runs)) == [2, 2]
    assert {span.agent_run_id for span in tools} == set(runs)
    for call in played.calls:
        wanted = [each["id"] for each in call.choices[0].tool_calls]
        used = [
            span.attributes[semconv.GEN_AI_TOOL_CALL_ID]
            for span in tools
            if span.agent_run_id == call.agent_run_id
        ]
        assert wanted in ([], used)


class Raises(BaseCallbackHandler):
    """A callback of the user's, which breaks."""

    def __init__(self, error, *, raise_error):
        self.error = error
        self.raise_error = raise_error

    def on_chat_model_start(self, *args, **kwargs):
        raise self.error

    def on_tool_end(self, *args, **kwargs):
        raise self.error


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
async def test_a_users_callback_that_raises_unseen_changes_nothing(bench, speak, form, caplog):
    async def program(job):
        broken = {"callbacks": [Raises(KeyError("mine"), raise_error=False)]}
        return said(await asked(speak(job, PLANNER, lookup), form, broken))

    with caplog.at_level("CRITICAL"):
        played = await bench.one(program)
    checked(played, bench)
    assert played.output == ANSWER
    assert {span.status for span in played.spans} == {"ok"}
    assert len(triplets(played, PLANNER)) == 2


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
async def test_one_that_ends_the_run_is_the_users_error_and_the_next_agent_is_right(
    bench, speak, form, caplog
):
    error = KeyError("mine")

    async def program(job):
        broken = {"callbacks": [Raises(error, raise_error=True)]}
        with pytest.raises(KeyError) as caught:
            await asked(speak(job, PLANNER, lookup), form, broken)
        assert caught.value is error
        return said(await speak(job, WRITER).ainvoke(ASKED))

    with caplog.at_level("CRITICAL"):
        played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    assert [call.agent for call in played.calls] == [WRITER]
    agents = [(span.agent, span.status) for span in of_kind(played, SpanKind.AGENT)]
    assert agents == [(PLANNER, "error"), (WRITER, "ok")]
    assert len(triplets(played, WRITER)) == 1


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
async def test_a_retried_request_is_one_call(bench, speak, form):
    async def program(job):
        return said(await asked(speak(job, WRITER, max_retries=2), form))

    bench.fake.fail(1, status=503)
    played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    tries = [(call.agent, call.tries, call.superseded) for call in played.calls]
    assert tries == [(WRITER, 1, True), (WRITER, 2, False)]
    (llm,) = of_kind(played, SpanKind.LLM)
    assert {call.id for call in played.calls} == {llm.call_id}
    assert len(triplets(played, WRITER)) == 1


@wrap_model_call
def trimmed(request, handler):
    """Keeps the last two turns, as an agent with a short memory does."""
    left = trim_messages(
        request.messages, strategy="last", token_counter=len, max_tokens=5, start_on=("human", "ai")
    )
    return handler(request.override(messages=left))


@pytest.mark.parametrize("middleware", [[], [trimmed]])
async def test_a_trimmed_history_begins_a_new_branch_and_is_counted(chat, middleware):
    def program(job):
        agent = create_agent(
            chat(job, PLANNER), tools=[lookup], name=PLANNER, middleware=middleware
        )
        return said(agent.invoke(ASKED))

    turns = ['{"item": "tea"}', '{"item": "milk"}', '{"item": "rice"}']
    stable = FakeOptions(stable=True)
    async with Bench.open(stable, integrations=[LangChainIntegration()]) as bench:
        bench.fake.script = asking(*turns)
        played = await bench.one(program)
    checked(played, bench)
    adapted = played.adapt(PLANNER)
    paths = [len(path.calls) for path in adapted.trajectories[PLANNER]]
    if middleware:
        assert (sorted(paths), breaks(played.record, adapted)) == (
            [1, 3],
            {PLANNER: {"trimmed": 1}},
        )
    else:
        assert (paths, breaks(played.record, adapted)) == ([4], {})

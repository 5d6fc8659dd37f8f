"""Rules of the handler that single programs show: parents, control flow, names, duplicates."""

import asyncio
import logging
import operator
from contextvars import Context, copy_context
from typing import Annotated, TypedDict
from uuid import uuid4

import langchain_core.tracers.context as tracers
import openai
import pytest
from agl_langchain import AglCallbackHandler
from agl_langchain._integration import LangChainIntegration
from agl_testing._captured import (
    ancestors,
    check_identity,
    check_tokens,
    triplets,
    usage,
)
from agl_testing.bench import Bench
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import JUDGE, PLANNER, WRITER
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult, LLMResult
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import Command, interrupt

from agl_core import semconv
from agl_core.tracing import agent_scope, attach, operation, trace
from agl_core.types import SpanKind

Q = [HumanMessage("What is the price of tea?")]
ASKED = {"messages": Q}


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]


def calls_of(played):
    if played.error is not None:
        raise played.error
    return [(call.agent, call.model.rpartition("@")[0]) for call in played.calls]


async def test_parents_come_from_parent_run_id_whatever_task_calls(tree, caplog):
    """Starts are delivered by one task, ends by another, the tool by a thread."""
    graph, node, chat, tool = (uuid4() for _ in range(4))
    handler = AglCallbackHandler()
    meta = {"langgraph_node": WRITER, "langgraph_checkpoint_ns": "writer:1"}

    async def starts():
        handler.on_chain_start({}, {}, run_id=graph, name="G")
        handler.on_chain_start({}, {}, run_id=node, parent_run_id=graph, metadata=meta, name="N")
        handler.on_chat_model_start(
            {}, [Q], run_id=chat, parent_run_id=node, metadata=meta, name="C"
        )
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, start_tool)

    def start_tool():
        with_context.run(
            handler.on_tool_start, {}, "x", run_id=tool, parent_run_id=node, metadata=meta, name="T"
        )

    async def ends():
        handler.on_tool_end("y", run_id=tool)
        handler.on_llm_end(LLMResult(generations=[]), run_id=chat)
        handler.on_chain_end({}, run_id=node)
        handler.on_chain_end({}, run_id=graph)

    with trace("root") as recorder:
        with_context = copy_context()
        await asyncio.create_task(starts())
        await asyncio.create_task(ends())
        spans = recorder.snapshot()
    assert tree(spans) == [
        "operation root",
        ". operation G",
        ". . agent writer",
        ". . . llm C",
        ". . . tool T",
    ]
    assert all(span.status == "ok" for span in spans[1:])
    assert not caplog.records


def interrupted(job, chat, checkpointer, ask):
    first, second = chat(job, PLANNER), chat(job, WRITER)

    def plan(state):
        return {"said": [first.invoke(Q).text]}

    def write(state):
        ask("ok?")
        return {"said": [second.invoke(Q).text]}

    graph = StateGraph(State)
    graph.add_node(PLANNER, plan)
    graph.add_node(WRITER, write)
    graph.add_edge(START, PLANNER)
    graph.add_edge(PLANNER, WRITER)
    graph.add_edge(WRITER, END)
    return graph.compile(checkpointer=checkpointer)


async def test_an_interrupt_is_no_failure_and_resuming_goes_on(bench, chat):
    def action(job):
        graph = interrupted(job, chat, InMemorySaver(), interrupt)
        config = {"configurable": {"thread_id": "1"}}
        assert "__interrupt__" in graph.invoke({"said": []}, config)
        return graph.invoke(Command(resume="yes"), config)["said"]

    played = await bench.one(action)
    assert calls_of(played) == [(PLANNER, PLANNER), (WRITER, WRITER)]
    assert len(played.output) == 2
    assert {span.status for span in played.spans} == {"ok"}
    assert [each.agent for each in triplets(played, "*")] == [PLANNER, WRITER]


async def test_a_look_alike_of_an_interrupt_is_an_error(bench, chat):
    class GraphInterrupt(Exception):  # noqa: N818  the framework's name is the point
        __module__ = "langgraph.errors"

    def fail(_):
        raise GraphInterrupt("my own")

    def action(job):
        interrupted(job, chat, None, fail).invoke({"said": []})

    played = await bench.one(action)
    assert type(played.error) is GraphInterrupt
    failed = [span for span in played.spans if span.status == "error"]
    assert WRITER in {span.name for span in failed}
    assert all("my own" in span.error for span in failed)


@pytest.mark.parametrize("how", ["bare", "config", "own_handler"])
@pytest.mark.parametrize("explicit", [False, True])
async def test_an_agent_in_a_tool_hangs_under_the_tool(bench, chat, how, explicit):
    class Own(BaseCallbackHandler):
        """Somebody else's handler, which replaces the inherited ones."""

    def action(job):
        inner = create_agent(chat(job, WRITER), tools=[], name=WRITER)

        def ask(item: str, config: dict | None = None) -> str:
            """Ask the inner agent twice."""
            given = {"bare": None, "config": config, "own_handler": {"callbacks": [Own()]}}[how]
            inner.invoke(ASKED, given)
            return inner.invoke(ASKED, given)["messages"][-1].text

        outer = create_agent(chat(job, PLANNER), tools=[ask], name=PLANNER)
        outer.invoke(ASKED, {"callbacks": [AglCallbackHandler()]} if explicit else None)

    played = await bench.one(action)
    assert [agent for agent, _ in calls_of(played)] == [PLANNER, WRITER, WRITER, PLANNER]
    check_tokens(played, bench.fake.log)
    spans = check_identity(played)
    (tool,) = [span for span in played.spans if span.kind is SpanKind.TOOL]
    for call in played.calls:
        inside = tool in ancestors(played.spans, spans[call.id])
        assert inside == (call.agent == WRITER)
    assert len({span.agent_run_id for span in spans.values()}) == 3
    assert [each.agent for each in triplets(played, PLANNER)] == [PLANNER, PLANNER]


async def test_an_agent_that_calls_itself_in_a_tool_runs_anew(bench, chat):
    def action(job):
        inner = create_agent(chat(job, PLANNER), tools=[], name=PLANNER)

        def ask(item: str) -> str:
            """Ask another of my kind."""
            return inner.invoke(ASKED)["messages"][-1].text

        create_agent(chat(job, PLANNER), tools=[ask], name=PLANNER).invoke(ASKED)

    played = await bench.one(action)
    assert {agent for agent, _ in calls_of(played)} == {PLANNER}
    first, inner, last = (call.agent_run_id for call in played.calls)
    assert first == last != inner


async def test_a_scope_of_the_users_wins_inside_a_node_and_loses_to_agents_in_it(bench, chat):
    def action(job):
        inner = create_agent(chat(job, WRITER), tools=[], name=WRITER)

        def node(state):
            chat(job, PLANNER).invoke(Q)
            with agent_scope(JUDGE, trainable=False), operation("grade"):
                chat(job, JUDGE).invoke(Q)
                inner.invoke(ASKED)
            chat(job, PLANNER).invoke(Q)
            return {"said": []}

        graph = StateGraph(State)
        graph.add_node(PLANNER, node)
        graph.add_edge(START, PLANNER)
        graph.compile().invoke({})

    played = await bench.one(action)
    assert [agent for agent, _ in calls_of(played)] == [PLANNER, JUDGE, WRITER, PLANNER]
    spans = check_identity(played)
    assert [call.trainable for call in played.calls] == [True, False, False, True]
    around = ancestors(played.spans, spans[played.calls[1].id])
    assert [span.name for span in around] == ["grade", JUDGE, PLANNER, "LangGraph"]


async def test_what_a_reader_of_a_stream_does_is_not_the_agents(bench, chat):
    """Between two chunks the reader runs, and whatever it sends is its own."""

    def action(job):
        agent = create_agent(chat(job, WRITER), tools=[], name=WRITER)
        with openai.OpenAI(base_url=job.base_url, api_key=job.api_key) as client:
            for _ in agent.stream(ASKED, stream_mode="messages"):
                messages = [{"role": "user", "content": "good?"}]
                client.chat.completions.create(model=job.model(JUDGE), messages=messages)
                with agent_scope(PLANNER):
                    client.chat.completions.create(model=job.model(PLANNER), messages=messages)

    played = await bench.one(action)
    calls_of(played)
    check_identity(played, names={JUDGE: None})


async def test_a_reader_that_leaves_early_is_no_failure(bench, chat):
    def action(job):
        agent = create_agent(chat(job, WRITER), tools=[], name=WRITER)
        for _ in agent.stream(ASKED, stream_mode="values"):
            break
        for _ in chat(job, WRITER).stream(Q, config={"metadata": {"lc_agent_name": WRITER}}):
            break

    played = await bench.one(action)
    assert played.error is None
    assert {span.status for span in played.spans} == {"ok"}


async def test_handlers_given_many_times_record_once(bench, chat):
    handler = AglCallbackHandler()

    def action(job):
        agent = create_agent(chat(job, WRITER, callbacks=[AglCallbackHandler()]), name=WRITER)
        agent = agent.with_config(callbacks=[handler, AglCallbackHandler()])
        agent.invoke(ASKED, {"callbacks": [handler, AglCallbackHandler()]})

    played = await bench.one(action)
    assert calls_of(played) == [(WRITER, WRITER)]
    check_identity(played)
    kinds = [span.kind.value for span in played.spans]
    assert kinds == ["agent", "operation", "llm", "reward"]


async def test_the_handler_alone_is_enough_without_the_integration(bench, chat):
    def action(job):
        agent = create_agent(chat(job, WRITER), tools=[], name=WRITER)
        agent.invoke(ASKED, {"callbacks": [AglCallbackHandler()]})

    async with Bench.open() as alone:
        # The fixture's integration is replaced: only the wire stays.
        hooks, tracers._configure_hooks[:] = list(tracers._configure_hooks), []
        try:
            played = await alone.one(action)
        finally:
            tracers._configure_hooks[:] = hooks
    assert calls_of(played) == [(WRITER, WRITER)]
    check_identity(played)


class Relay(BaseChatModel):
    """A chat model that hands on to another one."""

    to: BaseChatModel

    @property
    def _llm_type(self):
        return "relay"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        message = AIMessage(self.to.invoke(messages).text)
        return ChatResult(generations=[ChatGeneration(message=message)])


async def test_a_model_that_hands_on_to_another_is_one_call(bench, chat):
    def action(job):
        relay = Relay(to=chat(job, WRITER))
        create_agent(relay, tools=[], name=WRITER).invoke(ASKED)

    played = await bench.one(action)
    assert calls_of(played) == [(WRITER, WRITER)]
    check_identity(played)
    assert len(triplets(played, WRITER)) == 1


async def test_calls_of_middleware_have_reserved_names(bench, chat):
    def action(job):
        summarizer = SummarizationMiddleware(
            chat(job, "@summarizer"), trigger=("messages", 2), keep=("messages", 1)
        )
        agent = create_agent(chat(job, WRITER), tools=[], name=WRITER, middleware=[summarizer])
        history = [HumanMessage("hi"), AIMessage("hello"), HumanMessage("tea?")]
        agent.invoke({"messages": history})

    played = await bench.one(action)
    assert [agent for agent, _ in calls_of(played)] == ["@summarizer", WRITER]
    check_identity(played)
    assert [call.trainable for call in played.calls] == [False, True]
    assert played.adapt("*").trajectories.keys() == {WRITER}


async def test_a_refused_request_ends_its_span_as_error(bench, chat):
    bench.fake.fail(1, status=400)

    def action(job):
        create_agent(chat(job, WRITER, max_retries=0), tools=[], name=WRITER).invoke(ASKED)

    played = await bench.one(action)
    assert isinstance(played.error, openai.BadRequestError)
    (llm,) = [span for span in played.spans if span.kind is SpanKind.LLM]
    assert (llm.status, llm.agent) == ("error", WRITER)


async def test_a_run_may_end_where_no_attempt_is_known(bench):
    """As in a thread that was started without the context."""
    handler = AglCallbackHandler()

    def action(job):
        run_id = uuid4()
        handler.on_chain_start({}, {}, run_id=run_id, name="late")
        Context().run(handler.on_chain_end, {}, run_id=run_id)

    played = await bench.one(action)
    (span,) = [span for span in played.spans if span.name == "late"]
    assert span.status == "ok"


def test_outside_a_rollout_the_handler_keeps_nothing(caplog):
    handler = AglCallbackHandler()
    agent = create_agent(FakeListChatModel(responses=["hi"]), tools=[], name=WRITER)
    answer = agent.invoke(ASKED, {"callbacks": [handler]})
    assert answer["messages"][-1].text == "hi"
    assert not vars(handler)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_detached_integration_records_nothing():
    before = list(tracers._configure_hooks)
    agent = create_agent(FakeListChatModel(responses=["hi"]), tools=[], name=WRITER)
    attachment = attach(integrations=[LangChainIntegration()])
    with trace("attached") as recorder:
        agent.invoke(ASKED)
    attachment.detach()
    with trace("detached") as silent:
        agent.invoke(ASKED)
    assert WRITER in {span.agent for span in recorder.snapshot()}
    assert [span.name for span in silent.snapshot()] == ["detached"]
    assert tracers._configure_hooks == before


@pytest.mark.parametrize("told", [True, False])
async def test_a_streamed_call_has_the_usage_that_the_model_tells(bench, chat, told):
    def ask(job):
        agent = create_agent(
            chat(job, WRITER, streaming=True, stream_usage=told), tools=[], name=WRITER
        )
        agent.invoke(ASKED)

    played = await bench.one(ask)
    assert calls_of(played) == [(WRITER, WRITER)]
    assert list(usage(played).values()) == ([bench.fake.log[0].usage] if told else [])


async def test_a_judge_that_is_asked_after_a_call_was_cancelled_is_no_other_try_of_it(bench, chat):
    asked, left = asyncio.Event(), asyncio.Event()

    async def hold(answer, position):
        if answer is bench.fake.log[0]:
            asked.set()
            await left.wait()

    bench.fake.before_send = hold

    async def cancel(task):
        await asked.wait()
        task.cancel()

    async def program(job):
        model = chat(job, WRITER)
        canceller = asyncio.ensure_future(cancel(asyncio.current_task()))
        # In this very task, as `asyncio.timeout` does it.
        with pytest.raises(asyncio.CancelledError):
            await model.ainvoke(Q, config={"metadata": {"lc_agent_name": WRITER}})
        await canceller
        left.set()
        await model.root_async_client.chat.completions.create(
            model=job.model(JUDGE), messages=[{"role": "user", "content": "Good?"}]
        )
        await model.http_async_client.aclose()

    played = await bench.one(program)
    assert calls_of(played) == [(WRITER, WRITER), ("", JUDGE)]
    errors = [span.error for span in played.spans if span.kind is SpanKind.LLM]
    assert errors == ["CancelledError", ""]


class CannotCount(BaseCallbackHandler):
    """A user's callback that fails, and that LangChain is to fail with."""

    raise_error = True

    def on_chat_model_start(self, *args, **kwargs):
        raise LookupError("no counter")


async def test_what_a_failing_callback_leaves_open_ends_with_its_graph(bench, chat):
    def program(job):
        writer = create_agent(chat(job, WRITER), tools=[], name=WRITER)
        with pytest.raises(LookupError, match="no counter"):
            writer.invoke(ASKED, {"callbacks": [CannotCount()]})
        chat(job, JUDGE).root_client.chat.completions.create(
            model=job.model(JUDGE), messages=[{"role": "user", "content": "Good?"}]
        )

    played = await bench.one(program)
    assert calls_of(played) == [("", JUDGE)]
    assert {span.error for span in played.spans if span.agent} == {"LookupError: no counter"}


@tool(f"transfer_to_{WRITER}")
def transfer(
    state: Annotated[dict, InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]
) -> Command:
    """Let the writer go on."""
    told = ToolMessage("Over to the writer", tool_call_id=tool_call_id)
    update = {"messages": [state["messages"][-1], told]}
    return Command(goto=[WRITER, END], graph=Command.PARENT, update=update)


@tool
def note(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command:
    """Keep a note; hands nothing over."""
    return Command(update={"messages": [ToolMessage("Noted", tool_call_id=tool_call_id)]})


def invoking(agent):
    def node(state):
        return agent.invoke(state)

    return node


@pytest.mark.parametrize(("given", "result"), [(transfer, "Over to the writer"), (note, "Noted")])
async def test_an_agent_that_hands_over_to_another_says_so(bench, chat, given, result):
    replies = [FakeReply(tool_calls=[{"name": given.name, "arguments": "{}"}])]
    bench.fake.script = lambda _: replies.pop() if replies else FakeReply(text="done")

    def program(job):
        graph = StateGraph(MessagesState)
        for name, tools in ((PLANNER, [given]), (WRITER, [])):
            # As nodes themselves, agents of older versions do not say their names.
            graph.add_node(name, invoking(create_agent(chat(job, name), tools=tools, name=name)))
        graph.add_edge(START, PLANNER)
        graph.compile().invoke(ASKED)

    played = await bench.one(program)
    assert calls_of(played)[0] == (PLANNER, PLANNER)
    (used,) = [span for span in played.spans if span.kind is SpanKind.TOOL]
    assert used.attributes[semconv.GEN_AI_TOOL_RESULT] == result
    handoffs = [span for span in played.spans if span.name == "handoff"]
    said = [
        (span.parent_id, *map(span.attributes.get, ("agl.handoff.from", "agl.handoff.to")))
        for span in handoffs
    ]
    assert said == ([(used.parent_id, PLANNER, WRITER)] if given is transfer else [])
    assert {span.agent for span in handoffs} <= {PLANNER}

"""What fails, is left, is repeated or is not there: nothing is lost, nothing is counted twice."""

import asyncio
import inspect
import logging

import pytest
from agl_crewai import AglEventListener
from agl_crewai._integration import CrewAIIntegration
from agl_testing._captured import check_identity, triplets
from agl_testing.bench import Bench
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, EXPECTED, PLANNER, WRITER, reply, skeleton
from crewai import Crew
from crewai.events.event_bus import CrewAIEventsBus, crewai_event_bus
from crewai.events.types.agent_events import LiteAgentExecutionStartedEvent
from crewai.events.types.tool_usage_events import ToolUsageStartedEvent
from crewai.hooks import register_before_llm_call_hook, unregister_before_llm_call_hook
from crewai.tools import tool
from crewai.tools.tool_failure import ToolExecutionFailedError, ToolFailurePolicy
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

from agl_core import semconv
from agl_core.errors import CaptureError, ConfigError
from agl_core.tracing import attach
from agl_core.types import SpanKind

from .programs import CrewAIProgram, agent, lookup, task

LONG = "Tea is 4 coins, as it was before. " * 2000
LOOSE = {"respect_context_window": True, "use_better_compaction": True}


class Price(BaseModel):
    item: str


def of_kind(played, kind):
    return [span for span in played.spans if span.kind is kind]


def ask(job, *tools, **fields):
    return agent(job, PLANNER, *tools, **fields).kickoff(job.question).raw


@tool("lookup")
def broken(item: str) -> str:
    """Look up what an item costs."""
    raise KeyError(item)


@tool("lookup")
def wordy(item: str) -> str:
    """Look up what an item costs."""
    return LONG


def asks_once():
    """A model that asks for its tool first of all, whatever becomes of the history."""
    asked = []

    def script(body):
        if asked or not body.get("tools"):
            return FakeReply(text=ANSWER)
        asked.append(body)
        return reply(body)

    return script


async def test_a_tool_that_raises_ends_as_its_exception(bench):
    played = await bench.one(lambda job: ask(job, broken))
    assert played.output == ANSWER
    (used,) = of_kind(played, SpanKind.TOOL)
    assert (used.status, used.error) == ("error", "KeyError: 'tea'")
    (ran,) = of_kind(played, SpanKind.AGENT)
    assert ran.status == "ok"


async def test_a_deliberate_stop_closes_all_that_was_open(bench):
    """CrewAI tells the end of neither the agent nor its task's agent then."""

    def program(job):
        planner = agent(job, PLANNER, broken, tool_failure_policy=ToolFailurePolicy.RAISE)
        with pytest.raises(ToolExecutionFailedError):
            Crew(agents=[planner], tasks=[task(job.question, planner)]).kickoff()
        return agent(job, WRITER).kickoff(job.question).raw

    played = await bench.one(program)
    check_identity(played)
    ended = {span.agent: span for span in of_kind(played, SpanKind.AGENT)}
    assert ended[PLANNER].error.startswith("ToolExecutionFailedError: ")
    assert ended[WRITER].parent_id is None
    assert all(span.error != "not ended" for span in played.spans)


async def test_an_agent_that_is_run_again_after_a_failure(bench):
    failures = [RuntimeError("closed")]

    def program(job):
        def stop(step):
            if failures:
                raise failures.pop()

        planner = agent(job, PLANNER, lookup, step_callback=stop, max_retry_limit=1)
        return Crew(agents=[planner], tasks=[task(job.question, planner)]).kickoff().raw

    played = await bench.one(program)
    check_identity(played)
    runs = of_kind(played, SpanKind.AGENT)
    assert [(run.status, run.error) for run in runs] == [
        ("error", "RuntimeError: closed"),
        ("ok", ""),
    ]
    assert len({run.parent_id for run in runs}) == 1


async def test_a_retried_call_is_one_call(bench):
    bench.fake.fail(1)
    played = await bench.one(ask)
    spans = check_identity(played) if len(played.calls) == 1 else {}
    kept = [call for call in played.calls if not call.superseded]
    assert [call.tries for call in kept] == [2]
    assert len(of_kind(played, SpanKind.LLM)) == 1
    assert len(triplets(played, PLANNER)) == 1
    assert spans or len(played.calls) == 2


async def test_a_call_that_fails_ends_once_with_its_exception(bench):
    bench.fake.fail(1, status=400)
    played = await bench.one(ask)
    (called,) = of_kind(played, SpanKind.LLM)
    assert called.status == "error"
    assert called.error.startswith("BadRequestError: Error code: 400")
    (ran,) = of_kind(played, SpanKind.AGENT)
    assert ran.error.startswith("BadRequestError: ")


async def test_usage_and_response_are_on_the_span(bench):
    played = await bench.one(ask)
    (called,) = of_kind(played, SpanKind.LLM)
    (answer,) = bench.fake.log
    assert called.attributes[semconv.GEN_AI_RESPONSE_ID] == answer.id
    assert called.attributes[semconv.GEN_AI_RESPONSE_FINISH_REASONS] == ["stop"]
    assert called.attributes[semconv.GEN_AI_USAGE_INPUT_TOKENS] == len(answer.prompt_token_ids)
    used = called.attributes[semconv.GEN_AI_USAGE_OUTPUT_TOKENS]
    assert used == len(answer.choices[0].token_ids)


async def test_summaries_are_the_summarizers_and_never_trained(bench, caplog):
    bench.fake.script = asks_once()
    played = await bench.one(
        lambda job: ask(job, wordy, respect_context_window=True, use_better_compaction=False)
    )
    assert played.output == ANSWER
    owned = [call for call in played.calls if call.agent == "@summarizer"]
    assert owned
    assert not any(call.trainable for call in owned)
    assert {each.agent for each in triplets(played, "*")} == {PLANNER}
    assert "respect_context_window=False, use_better_compaction=False" in caplog.text


async def test_a_summary_after_a_refused_prompt_is_the_summarizers(bench):
    """Then CrewAI emits no event of its own around it."""
    overflow = {"error": {"message": "maximum context length is 10 tokens", "code": None}}
    bench.fake.fail(1, status=400, body=overflow)
    played = await bench.one(lambda job: ask(job, respect_context_window=True))
    agents = {call.agent for call in played.calls}
    assert agents == {PLANNER, "@summarizer"}, played.error


async def test_each_agent_that_may_be_rewritten_is_said_once(bench, caplog):
    def program(job):
        for _ in range(2):
            ask(job, **LOOSE)

    with caplog.at_level(logging.WARNING, "agl_crewai"):
        await bench.one(program)
    said = [each for each in caplog.records if each.name.startswith("agl_crewai")]
    assert len(said) == 1
    assert PLANNER in said[0].getMessage()


async def test_calls_that_crewai_makes_for_itself_are_its_own(bench):
    """A converter asks for the form that a task wants, where the agent had tools."""

    def program(job):
        planner = agent(job, PLANNER, lookup)
        asked = task(job.question, planner, output_pydantic=Price)
        return Crew(agents=[planner], tasks=[asked]).kickoff().pydantic

    played = await bench.one(program)
    assert played.output == Price(item="tea")
    by_agent = {call.agent: call.trainable for call in played.calls}
    assert by_agent.get(PLANNER) is True
    assert by_agent.get("@crewai") is False


async def test_two_listeners_record_once(bench):
    listener = AglEventListener()
    try:
        played = await bench.one(CrewAIProgram().run)
    finally:
        listener.close()
    assert skeleton(played.spans) == EXPECTED
    check_identity(played)


async def test_a_listener_alone_is_enough():
    async with Bench.open() as bench:
        attachment, listener = attach(), AglEventListener()
        try:
            played = await bench.one(CrewAIProgram().run)
        finally:
            listener.close()
            attachment.detach()
    assert skeleton(played.spans) == EXPECTED
    check_identity(played)


def test_closing_twice_leaves_the_bus_as_it_was():
    before = inspect.getattr_static(CrewAIEventsBus, "emit")
    listener = AglEventListener()
    assert inspect.getattr_static(CrewAIEventsBus, "emit") is not before
    listener.close()
    listener.close()
    assert inspect.getattr_static(CrewAIEventsBus, "emit") is before


def test_a_bus_that_emits_otherwise_is_refused(monkeypatch):
    monkeypatch.setattr(CrewAIEventsBus, "emit", lambda self, happening: None)
    with pytest.raises(ConfigError, match=r"CrewAIEventsBus.emit.*newer agl-core"):
        CrewAIIntegration().attach()


async def test_a_failing_handler_and_hook_of_the_user_change_nothing(bench):
    def fails(*given):
        raise RuntimeError("mine")

    register_before_llm_call_hook(fails)
    crewai_event_bus.register_handler(LiteAgentExecutionStartedEvent, fails)
    try:
        played = await bench.one(ask)
    finally:
        crewai_event_bus.off(LiteAgentExecutionStartedEvent, fails)
        unregister_before_llm_call_hook(fails)
    assert played.output == ANSWER
    check_identity(played)


async def test_the_users_own_listener_sees_what_it_saw(bench):
    seen = []

    def note(source, event):
        seen.append(event.tool_name)

    crewai_event_bus.register_handler(ToolUsageStartedEvent, note)
    try:
        await bench.one(lambda job: ask(job, lookup))
        await asyncio.to_thread(crewai_event_bus.flush)
    finally:
        crewai_event_bus.off(ToolUsageStartedEvent, note)
    assert seen == ["lookup"]


async def test_the_users_own_opentelemetry_is_left_alone(bench):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("mine")

    @tool("lookup")
    def traced(item: str) -> str:
        """Look up what an item costs."""
        with tracer.start_as_current_span("price"):
            return "4 coins"

    def program(job):
        with tracer.start_as_current_span("outer"):
            return ask(job, traced)

    played = await bench.one(program)
    check_identity(played)
    inner, outer = exporter.get_finished_spans()
    assert (inner.name, outer.name) == ("price", "outer")
    assert inner.parent.span_id == outer.context.span_id


async def test_a_stream_that_is_left_half_way_is_never_trained(bench):
    begun, hold = asyncio.Event(), asyncio.Event()

    async def before_send(answered, position):
        if position == 3:
            begun.set()
            await hold.wait()

    bench.fake.before_send = before_send

    async def program(job):
        writer = agent(job, WRITER, stream=True)
        run = asyncio.create_task(writer.llm.acall(job.question, from_agent=writer))
        await begun.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        hold.set()

    played = await bench.one(program)
    (call,) = played.calls
    assert (call.agent, call.complete) == (WRITER, False)
    with pytest.raises(CaptureError, match="incomplete"):
        triplets(played, WRITER)


async def test_a_cancelled_crew_leaves_nothing_open_to_the_next(bench):
    hold = asyncio.Event()
    entered = asyncio.Event()

    async def before_send(answered, position):
        if not hold.is_set():
            entered.set()
            await hold.wait()

    bench.fake.before_send = before_send

    async def program(job):
        planner = agent(job, PLANNER)
        crew = Crew(agents=[planner], tasks=[task(job.question, planner)])
        run = asyncio.create_task(crew.akickoff())
        await entered.wait()
        run.cancel()
        hold.set()
        with pytest.raises(asyncio.CancelledError):
            await run
        return (await agent(job, WRITER).kickoff_async(job.question)).raw

    played = await bench.one(program)
    assert played.output == ANSWER
    wrote = next(span for span in of_kind(played, SpanKind.AGENT) if span.agent == WRITER)
    assert wrote.parent_id is None
    assert [call.agent for call in played.calls if call.complete][-1] == WRITER


@pytest.mark.parametrize("arguments", ["not json", '{"item": "tea"', "[1]", '"tea"'])
async def test_arguments_that_are_no_object(bench, arguments):
    def script(body):
        if body["messages"][-1]["role"] == "tool":
            return FakeReply(text=ANSWER)
        return FakeReply(tool_calls=[{"name": "lookup", "arguments": arguments}])

    bench.fake.script = script
    played = await bench.one(lambda job: ask(job, lookup))
    assert all(span.error != "not ended" for span in played.spans)
    asked = [call.choices[0].tool_calls for call in played.calls if call.choices[0].tool_calls]
    assert asked[0][0]["function"]["arguments"] == arguments


async def test_an_image_in_a_message(bench):
    content = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]

    def program(job):
        writer = agent(job, WRITER)
        return writer.llm.call([{"role": "user", "content": content}], from_agent=writer)

    played = await bench.one(program)
    assert played.error is None
    check_identity(played)
    assert played.calls[0].messages[0]["content"] == content


async def test_ten_megabytes_from_a_tool(bench):
    @tool("lookup", result_as_answer=True)
    def huge(item: str) -> str:
        """Look up what an item costs."""
        return "x" * 10_000_000

    played = await bench.one(lambda job: len(ask(job, huge)))
    assert played.output == 10_000_000
    check_identity(played)
    (used,) = of_kind(played, SpanKind.TOOL)
    assert len(used.attributes[semconv.GEN_AI_TOOL_RESULT]) < 1_000_000

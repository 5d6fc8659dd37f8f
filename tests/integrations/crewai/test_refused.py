"""Tool calls that come to nothing without an exception: each is one failed tool span."""

import pytest
from agl_crewai import AglEventListener
from agl_testing._captured import check_identity
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, PLANNER, TOOL
from crewai import Crew
from crewai.events.event_bus import crewai_event_bus
from crewai.events.types.tool_usage_events import ToolFailureDetectedEvent
from crewai.tools import tool
from crewai.tools.tool_failure import ToolFailure, ToolFailurePolicy, ToolFailureReason

from agl_core import semconv
from agl_core.types import SpanKind

from .programs import agent, lookup, task

UNKNOWN = {"name": "nothing", "arguments": "{}"}
NO_JSON = {"name": TOOL, "arguments": "{oops"}
TEXT = {"lookup": "{oops", "nothing": '{"item": "tea"}'}


def asking(*uses, text=None):
    """A model that asks once for these tools, or in CrewAI's own text format."""
    turns = [FakeReply(tool_calls=list(uses)) if text is None else FakeReply(text=text)]
    last = ANSWER if text is None else f"Thought: done\nFinal Answer: {ANSWER}"
    return lambda body: turns.pop() if turns else FakeReply(text=last)


def ran(job, form, **fields):
    planner = agent(job, PLANNER, lookup, **fields)
    if form == "agent":
        return planner.kickoff(job.question).raw
    return Crew(agents=[planner], tasks=[task(job.question, planner)]).kickoff().raw


def tools(played):
    check_identity(played)
    return [span for span in played.spans if span.kind is SpanKind.TOOL]


@pytest.mark.parametrize("form", ["agent", "crew"])
@pytest.mark.parametrize(
    ("use", "error"), [(UNKNOWN, "Tool not found"), (NO_JSON, "Failed to parse")]
)
@pytest.mark.parametrize("listeners", [0, 1])
async def test_a_call_that_reaches_no_tool(bench, form, use, error, listeners):
    more = [AglEventListener() for _ in range(listeners)]
    bench.fake.script = asking(use)
    try:
        played = await bench.one(lambda job: ran(job, form))
    finally:
        for listener in more:
            listener.close()
    assert played.output == ANSWER
    (used,) = tools(played)
    assert (used.name, used.agent, used.status) == (use["name"], PLANNER, "error")
    assert error in used.error
    asked = {"{}": {}}.get(use["arguments"], use["arguments"])
    assert used.attributes[semconv.GEN_AI_TOOL_ARGUMENTS] == asked


async def test_a_refusal_without_a_text_is_a_failed_tool(bench):
    def program(job):
        event = ToolFailureDetectedEvent(
            tool_name="nothing",
            tool_args={},
            failure=ToolFailure(message="", reason=ToolFailureReason.UNKNOWN_TOOL),
            policy=ToolFailurePolicy.WARN,
        )
        emitted = crewai_event_bus.emit(None, event)
        if emitted is not None:
            emitted.result()

    played = await bench.one(program)
    assert played.error is None
    (used,) = (span for span in played.spans if span.kind is SpanKind.TOOL)
    assert (used.name, used.status, used.error) == ("nothing", "error", "")


async def test_calls_that_reach_no_tool_beside_one_that_does(bench):
    bench.fake.script = asking(NO_JSON, UNKNOWN, {"name": TOOL, "arguments": '{"item": "tea"}'})
    played = await bench.one(lambda job: ran(job, "crew"))
    assert played.output == ANSWER
    assert sorted((span.name, span.status) for span in tools(played)) == [
        ("lookup", "error"),
        ("lookup", "ok"),
        ("nothing", "error"),
    ]


@pytest.mark.parametrize("name", TEXT)
async def test_in_crewais_own_text_format(bench, name):
    text = f"Thought: look\nAction: {name}\nAction Input: {TEXT[name]}"
    bench.fake.script = asking(text=text)

    def program(job):
        planner = agent(job, PLANNER, lookup)
        planner.llm.supports_function_calling = lambda: False
        return planner.kickoff(job.question).raw

    played = await bench.one(program)
    assert played.output == ANSWER
    (used,) = tools(played)
    assert used.status == "error"


@pytest.mark.parametrize("message", ["The shop is closed.", ""])
async def test_a_failure_that_a_tool_reports(bench, message):
    @tool("lookup")
    def closed(item: str) -> str:
        """Look up what an item costs."""
        return ToolFailure(message=message)

    played = await bench.one(lambda job: agent(job, PLANNER, closed).kickoff(job.question).raw)
    (used,) = tools(played)
    assert (used.status, used.error) == ("error", message)


@pytest.mark.parametrize(("use", "statuses"), [(NO_JSON, []), (UNKNOWN, ["ok"])])
async def test_a_policy_that_ignores_failures_hides_them(bench, use, statuses):
    bench.fake.script = asking(use)
    ignored = ToolFailurePolicy.IGNORE
    played = await bench.one(lambda job: ran(job, "crew", tool_failure_policy=ignored))
    assert [span.status for span in tools(played)] == statuses

"""Tools: their inputs, outputs and exceptions, and who speaks inside them."""

import asyncio

import openai
import pytest
from agl_testing._captured import check_identity, check_tokens
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, ITEM, JUDGE, PLANNER, TOOL_RESULT, WRITER
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken
from autogen_core.models import UserMessage
from autogen_core.tools import FunctionTool, TextResultContent, ToolResult, Workbench
from pydantic import BaseModel

from agl_core import semconv
from agl_core.tracing import agent_scope, emit_reward
from agl_core.types import SpanKind


def tools_of(played):
    return [span for span in played.spans if span.kind is SpanKind.TOOL]


def asks(bench, **call):
    """A model that calls this tool first, then answers."""

    def script(body):
        if body["messages"][-1]["role"] != "tool":
            return FakeReply(tool_calls=[{"name": "lookup", "arguments": "{}", **call}])
        return FakeReply(text=ANSWER)

    bench.fake.script = script


async def said(agent, job):
    return (await agent.run(task=job.question)).messages[-1].content


def lookup(item: str) -> str:
    """Look up what an item costs."""
    return TOOL_RESULT


async def test_inputs_and_outputs_are_on_the_span(bench, agent):
    async def program(job):
        return await said(agent(job, PLANNER, tools=[lookup]), job)

    played = await bench.one(program)
    (tool,) = tools_of(played)
    assert tool.attributes[semconv.GEN_AI_TOOL_ARGUMENTS] == {"item": ITEM}
    assert tool.attributes[semconv.GEN_AI_TOOL_RESULT] == TOOL_RESULT
    assert tool.attributes[semconv.GEN_AI_TOOL_CALL_ID]
    assert tool.agent == PLANNER


async def test_a_result_is_recorded_as_the_model_is_told_it(bench, agent):
    class Price(BaseModel):
        coins: int

    def price(item: str) -> Price:
        """What an item costs."""
        return Price(coins=4)

    async def program(job):
        return await said(agent(job, PLANNER, tools=[price]), job)

    played = await bench.one(program)
    assert tools_of(played)[0].attributes[semconv.GEN_AI_TOOL_RESULT] == '{"coins": 4}'


@pytest.mark.parametrize("in_thread", [False, True])
async def test_the_exception_that_the_model_is_told_of_is_on_the_tools_span(
    bench, agent, in_thread
):
    error = LookupError("the shop is closed")

    def closed(item: str) -> str:
        """Look up what an item costs."""
        raise error

    async def aclosed(item: str) -> str:
        """Look up what an item costs."""
        raise error

    async def program(job):
        tool = FunctionTool(closed if in_thread else aclosed, "Looks up.", name="lookup")
        return await said(agent(job, PLANNER, tools=[tool], max_tool_iterations=2), job)

    played = await bench.one(program)
    assert played.output == ANSWER
    (tool,) = tools_of(played)
    assert (tool.status, tool.error) == ("error", "LookupError: the shop is closed")
    assert tool.attributes[semconv.EXCEPTION_TYPE] == "builtins.LookupError"
    assert bench.fake.log[1].body["messages"][-1]["content"] == "the shop is closed"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"arguments": "{no json"}, "Expecting property name"),
        ({"name": "unheard_of"}, "tool 'unheard_of' not found"),
    ],
)
async def test_a_call_that_reaches_no_tool_is_recorded_once(bench, agent, call, says):
    asks(bench, **call)

    async def program(job):
        return await said(agent(job, PLANNER, tools=[lookup], max_tool_iterations=2), job)

    played = await bench.one(program)
    (tool,) = tools_of(played)
    assert tool.status == "error"
    assert says in tool.error
    assert tool.agent == PLANNER
    assert tool.attributes[semconv.GEN_AI_TOOL_ARGUMENTS] == call.get("arguments", "{}")
    check_identity(played)


async def test_wrong_arguments_are_the_tools_error(bench, agent):
    asks(bench, arguments='{"thing": 1}')

    async def program(job):
        return await said(agent(job, PLANNER, tools=[lookup], max_tool_iterations=2), job)

    played = await bench.one(program)
    (tool,) = tools_of(played)
    assert "ValidationError" in tool.error


class Shop(Workbench):
    """A workbench of the user's own, which runs no tool of AutoGen's."""

    component_type = "workbench"

    async def list_tools(self):
        return [{"name": "lookup", "parameters": {"type": "object", "properties": {}}}]

    async def call_tool(self, name, arguments=None, cancellation_token=None, call_id=None):
        return ToolResult(name=name, result=[TextResultContent(content=TOOL_RESULT)])

    async def start(self): ...

    async def stop(self): ...

    async def reset(self): ...

    async def save_state(self):
        return {}

    async def load_state(self, state): ...

    @classmethod
    def _from_config(cls, config): ...

    def _to_config(self): ...


async def test_tools_of_a_workbench_of_ones_own_are_recorded_from_the_events(bench, agent):
    asks(bench)

    async def program(job):
        return await said(agent(job, PLANNER, workbench=Shop(), max_tool_iterations=2), job)

    played = await bench.one(program)
    (tool,) = tools_of(played)
    assert tool.name == "lookup"
    assert tool.attributes[semconv.GEN_AI_TOOL_RESULT] == TOOL_RESULT


async def test_a_failed_result_without_a_text_is_a_failed_tool(bench, agent):
    class Silent(Shop):
        async def call_tool(self, name, arguments=None, cancellation_token=None, call_id=None):
            return ToolResult(name=name, result=[TextResultContent(content="")], is_error=True)

    asks(bench)

    async def program(job):
        return await said(agent(job, PLANNER, workbench=Silent(), max_tool_iterations=2), job)

    played = await bench.one(program)
    (tool,) = tools_of(played)
    assert (tool.status, tool.error) == ("error", "")


async def test_parallel_tool_calls_have_a_span_each(bench, agent):
    call = {"name": "lookup", "arguments": {"item": ITEM}}

    def script(body):
        asked = body["messages"][-1]["role"] != "tool"
        return FakeReply(tool_calls=[call, call]) if asked else FakeReply(text=ANSWER)

    bench.fake.script = script

    async def program(job):
        return await said(agent(job, PLANNER, tools=[lookup], max_tool_iterations=2), job)

    played = await bench.one(program)
    tools = tools_of(played)
    assert len(tools) == 2
    assert len({tool.attributes[semconv.GEN_AI_TOOL_CALL_ID] for tool in tools}) == 2


async def test_a_plain_function_runs_in_the_context_of_the_rollout(bench, agent):
    def judge(job):
        def lookup(item: str) -> str:
            """Ask another model, from the thread in which AutoGen runs plain functions."""
            emit_reward(0.5, "style")
            client = openai.OpenAI(base_url=job.base_url, api_key=job.api_key)
            with agent_scope(JUDGE, trainable=False), client:
                asked = [{"role": "user", "content": item}]
                answer = client.chat.completions.create(model=job.model(JUDGE), messages=asked)
                return answer.choices[0].message.content

        return lookup

    async def program(job):
        planner = agent(job, PLANNER, tools=[judge(job)], max_tool_iterations=2)
        return await said(planner, job)

    played = await bench.one(program)
    assert played.output == ANSWER
    check_identity(played)
    assert [call.agent for call in played.calls] == [PLANNER, JUDGE, PLANNER]
    rewards = {span.name for span in played.spans if span.kind is SpanKind.REWARD}
    assert rewards == {"style", "main"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agent_as_a_tool_speaks_for_itself_below_it(bench, agent, client, tree, streamed):
    async def program(job):
        writer = AgentTool(agent(job, WRITER), return_value_as_last_message=True)
        model = client(job, PLANNER, parallel_tool_calls=False)
        planner = agent(
            job,
            PLANNER,
            model=model,
            tools=[writer],
            max_tool_iterations=2,
            model_client_stream=streamed,
        )
        return await said(planner, job)

    def script(body):
        if body.get("tools") and body["messages"][-1]["role"] != "tool":
            return FakeReply(tool_calls=[{"name": WRITER, "arguments": {"task": ITEM}}])
        return FakeReply(text=ANSWER)

    bench.fake.script = script
    played = await bench.one(program)
    assert played.output == ANSWER
    check_tokens(played, bench.fake.log)
    check_identity(played)
    assert tree(played.spans)[:6] == [
        "agent planner",
        ". llm chat",
        ". tool writer",
        ". . agent writer",
        ". . . llm chat",
        ". llm chat",
    ]
    (tool,) = tools_of(played)
    assert tool.attributes[semconv.GEN_AI_TOOL_RESULT] == ANSWER


async def test_an_agent_that_asks_itself_begins_a_run_of_its_own(bench, agent, client):
    async def program(job):
        agents = []

        async def ask_planner(item: str) -> str:
            """Ask the planner."""
            return await said(agents[1], job)

        agents += [agent(job, PLANNER, tools=[ask_planner]), agent(job, PLANNER)]
        return await said(agents[0], job)

    played = await bench.one(program)
    check_identity(played)
    assert [call.agent for call in played.calls] == [PLANNER, PLANNER]
    assert len({call.agent_run_id for call in played.calls}) == 2


async def test_a_tool_run_by_the_program_itself_stands_under_its_scope(bench, tree):
    async def program(job):
        with agent_scope(PLANNER):
            tool = FunctionTool(lookup, "Looks up.")
            return await tool.run_json({"item": ITEM}, CancellationToken())

    played = await bench.one(program)
    assert played.output == TOOL_RESULT
    assert tree(played.spans)[:2] == ["agent planner", ". tool lookup"]


async def test_a_huge_result_is_cut_in_the_span_and_whole_for_the_model(bench, agent):
    huge = "x" * 10_000_000

    def lookup(item: str) -> str:
        """Look up what an item costs."""
        return huge

    async def program(job):
        planner = agent(job, PLANNER, tools=[lookup])
        return len((await planner.run(task=job.question)).messages[-1].content)

    played = await bench.one(program)
    assert played.output == len(huge)
    assert len(tools_of(played)[0].attributes[semconv.GEN_AI_TOOL_RESULT]) < 300_000


async def test_a_model_called_in_a_tool_belongs_to_nobody(bench, agent, client):
    async def program(job):
        async def lookup(item: str) -> str:
            """Ask the judge."""
            asked = [UserMessage(content=item, source="user")]
            both = [client(job, JUDGE).create(asked) for _ in range(2)]
            return (await asyncio.gather(*both))[0].content

        planner = agent(job, PLANNER, tools=[lookup], max_tool_iterations=2)
        return await said(planner, job)

    played = await bench.one(program)
    check_identity(played, names={JUDGE: None})
    assert len(played.calls) == 4

"""A budget as a filter of what models are asked, by the count of the model that answers."""

import pytest
from agents import OpenAIResponsesModel, RunConfig, Runner, function_tool
from agents.run import CallModelData, ModelInputData
from agl_budget import PromptBudget
from agl_openai_agents import PromptBudgetFilter
from agl_openai_agents._integration import OpenAIAgentsIntegration
from agl_testing.bench import Bench
from agl_testing.fake_openai import FakeOptions, FakeReply
from agl_testing.scenario import ANSWER, SYSTEM

from agl_core import semconv
from agl_core.errors import ContextOverflowError
from agl_core.tracing import attach

MODELS = pytest.mark.parametrize("over", [{}, {"model": OpenAIResponsesModel}])


@function_tool
def look(item: str) -> str:
    """Look up a price."""
    return f"{item} costs 4 " + "and so on " * 60


@pytest.fixture
async def bench():
    async with Bench.open(FakeOptions(tokenize=True, stable=True)) as bench:
        attachment = attach(integrations=[OpenAIAgentsIntegration()])
        yield bench
        attachment.detach()


def history(count):
    return [
        message
        for n in range(count)
        for message in (
            {"role": "user", "content": f"question {n} " + "x" * 60},
            {"role": "assistant", "content": f"answer {n}"},
        )
    ]


def cutting(budget):
    return RunConfig(call_model_input_filter=PromptBudgetFilter(budget))


def cuts(played):
    return [
        (span.agent, span.attributes[semconv.AGL_PROMPT_CUT])
        for span in played.spans
        if span.name == semconv.AGL_PROMPT_CUT
    ]


@MODELS
async def test_the_request_is_cut_and_the_run_keeps_everything(bench, agent, over):
    asked = [*history(8), {"role": "user", "content": "and now?"}]

    async def program(job):
        run = await Runner.run(agent(job, "writer", **over), asked, run_config=cutting(300))
        return run.to_input_list()

    played = await bench.one(program)
    if played.error is not None:
        raise played.error
    assert len(played.output) == len(asked) + 1
    (call,) = played.calls
    assert len(call.prompt_token_ids) <= 300
    assert call.messages[0] == {"role": "system", "content": SYSTEM}
    assert call.messages[-1]["content"] == "and now?"
    ((name, cut),) = cuts(played)
    assert name == cut["agent"] == "writer"
    assert cut["tokens_after"] == len(call.prompt_token_ids)
    assert cut["messages_cut"] == len(asked) + 1 - len(call.messages)


@MODELS
async def test_a_tool_loop_keeps_results_with_their_calls_and_cuts_a_long_one(bench, agent, over):
    asks = iter(["tea", "milk", "rice"])

    def script(body):
        item = next(asks, None)
        if item is None:
            return ANSWER
        return FakeReply(tool_calls=[{"name": "look", "arguments": {"item": item}}])

    bench.fake.script = script

    async def program(job):
        writer = agent(job, "writer", tools=[look], **over)
        run = Runner.run_streamed(writer, "prices?", run_config=cutting(600))
        return [event async for event in run.stream_events()]

    played = await bench.one(program)
    if played.error is not None:
        raise played.error
    assert [len(call.prompt_token_ids) <= 600 for call in played.calls] == [True] * 4
    for call in played.calls:
        assert [message["role"] for message in call.messages][:2] == ["system", "user"]
        called = {c["id"] for m in call.messages for c in m.get("tool_calls") or ()}
        assert called == {m["tool_call_id"] for m in call.messages if m["role"] == "tool"}
    assert "characters left out" in str(played.calls[-1].messages[-1]["content"])
    assert cuts(played)[-1][1]["messages_cut"] == 4


async def test_what_cannot_fit_reaches_the_program_as_an_overflow(bench, agent):
    async def program(job):
        await Runner.run(agent(job, "writer"), "hi", run_config=cutting(20))

    played = await bench.one(program)
    assert isinstance(played.error, ContextOverflowError)
    assert "'writer'" in str(played.error)
    assert played.calls == []


async def test_outside_a_rollout_only_a_count_of_its_own_cuts(agent):
    from agents import Agent

    asked = [*history(4), {"role": "user", "content": "and now?"}]
    data = CallModelData(ModelInputData(list(asked), SYSTEM), Agent(name="writer"), None)
    assert (await PromptBudgetFilter(10)(data)).input == asked
    counted = PromptBudget(4, count=lambda messages, tools: len(messages))
    assert (await PromptBudgetFilter(counted)(data)).input == asked[-3:]


async def test_tools_and_handoffs_count_and_items_of_every_kind_pass():
    from agents import Agent

    seen = []

    def count(messages, tools):
        seen.append(
            ([message["role"] for message in messages], [t["function"]["name"] for t in tools])
        )
        return sum(len(str(message.get("content"))) for message in messages)

    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "look"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": None},
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "well", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}", "id": "f"},
        {"type": "function_call_output", "call_id": "c", "output": "y" * 4000},
        {
            "type": "message",
            "id": "n",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "z" * 900, "annotations": []}],
        },
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "and " * 400},
                {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto"},
            ],
        },
    ]
    asked = Agent(name="writer", tools=[look], handoffs=[Agent(name="planner")])
    data = CallModelData(ModelInputData(list(items), None), asked, None)
    left = (await PromptBudgetFilter(PromptBudget(800, count=count))(data)).input
    roles, tools = seen[0]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    assert tools == ["look", "transfer_to_planner"]
    assert [item["role"] for item in left] == ["user"]
    text, image = left[0]["content"]
    assert "characters left out" in text["text"]
    assert image == items[-1]["content"][1]

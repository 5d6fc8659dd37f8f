"""A budget in the middleware of an agent, by the count of the model that answers."""

import pytest
from agl_budget import PromptBudget
from agl_langchain import PromptBudgetMiddleware
from agl_langchain._integration import LangChainIntegration
from agl_testing.bench import Bench
from agl_testing.fake_openai import FakeOptions, FakeReply
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool

from agl_core import semconv
from agl_core.errors import ContextOverflowError
from agl_core.tracing import attach


@tool
def look(item: str) -> str:
    """Look up a price."""
    return f"{item} costs 4 " + "and so on " * 60


@pytest.fixture
async def bench():
    async with Bench.open(FakeOptions(tokenize=True, stable=True)) as bench:
        attachment = attach(integrations=[LangChainIntegration()])
        yield bench
        attachment.detach()


def history(count):
    return [
        message
        for n in range(count)
        for message in (HumanMessage(f"question {n} " + "x" * 60), AIMessage(f"answer {n}"))
    ]


def agent_of(llm, budget, tools=()):
    return create_agent(
        llm,
        tools=list(tools),
        name="writer",
        system_prompt="be brief",
        middleware=[PromptBudgetMiddleware(budget)],
    )


def cuts(played):
    return [
        (span.agent, span.attributes[semconv.AGL_PROMPT_CUT])
        for span in played.spans
        if span.name == semconv.AGL_PROMPT_CUT
    ]


@pytest.mark.parametrize("form", ["sync", "async"])
async def test_the_request_is_cut_and_the_state_keeps_everything(bench, chat, form):
    asked = [*history(8), HumanMessage("and now?")]

    def invoke(job):
        return agent_of(chat(job, "writer"), 300).invoke({"messages": asked})

    async def ainvoke(job):
        llm = chat(job, "writer")
        try:
            return await agent_of(llm, 300).ainvoke({"messages": asked})
        finally:
            await llm.http_async_client.aclose()

    played = await bench.one(invoke if form == "sync" else ainvoke)
    assert played.error is None
    assert len(played.output["messages"]) == len(asked) + 1
    (call,) = played.calls
    assert len(call.prompt_token_ids) <= 300
    assert call.messages[0] == {"role": "system", "content": "be brief"}
    assert call.messages[-1]["content"] == "and now?"
    ((agent, cut),) = cuts(played)
    assert agent == cut["agent"] == "writer"
    assert cut["tokens_after"] == len(call.prompt_token_ids)
    assert cut["messages_cut"] == len(asked) + 1 - len(call.messages)


async def test_a_tool_loop_keeps_results_with_their_calls_and_cuts_a_long_one(bench, chat):
    asks = iter(["tea", "milk", "rice"])

    def script(body):
        item = next(asks, None)
        if item is None:
            return "done"
        return FakeReply(tool_calls=[{"name": "look", "arguments": {"item": item}}])

    bench.fake.script = script
    played = await bench.one(
        lambda job: agent_of(chat(job, "writer"), 600, [look]).invoke(
            {"messages": [HumanMessage("prices?")]}
        )
    )
    assert played.error is None
    assert [len(call.prompt_token_ids) <= 600 for call in played.calls] == [True] * 4
    for call in played.calls:
        roles = [message["role"] for message in call.messages]
        assert roles[:2] == ["system", "user"]
        called = {c["id"] for m in call.messages for c in m.get("tool_calls") or ()}
        assert called == {m["tool_call_id"] for m in call.messages if m["role"] == "tool"}
    assert "characters left out" in played.calls[-1].messages[-1]["content"]
    assert cuts(played)[-1][1]["messages_cut"] == 4


async def test_what_cannot_fit_reaches_the_program_as_an_overflow(bench, chat):
    played = await bench.one(
        lambda job: agent_of(chat(job, "writer"), 20).invoke({"messages": [HumanMessage("hi")]})
    )
    assert isinstance(played.error, ContextOverflowError)
    assert "'writer'" in str(played.error)
    assert played.calls == []


async def test_a_prompt_that_fits_is_the_same_with_the_middleware(bench, chat):
    asked = {"messages": [*history(2), HumanMessage("and now?")]}
    plain = await bench.one(
        lambda job: create_agent(
            chat(job, "writer"), tools=[], name="writer", system_prompt="be brief"
        ).invoke(asked)
    )
    with_it = await bench.one(lambda job: agent_of(chat(job, "writer"), 5000).invoke(asked))
    assert with_it.calls[0].messages == plain.calls[0].messages
    assert cuts(with_it) == []


def test_a_budget_of_its_own_count_holds_in_production():
    def words(messages, tools):
        return sum(len(str(message["content"]).split()) for message in messages)

    middleware = PromptBudgetMiddleware(PromptBudget(12, count=words))
    request = ModelRequest(
        model=FakeListChatModel(responses=["ok"]), messages=[*history(5), HumanMessage("and now?")]
    )
    asked = middleware.wrap_model_call(request, lambda request: request)
    assert asked.messages == request.messages[-len(asked.messages) :]
    assert 0 < len(asked.messages) < len(request.messages)

"""Compaction: summaries speak for themselves, and a prompt budget cuts what one call sends."""

import copy

import pytest
from agent_framework import (
    Content,
    InMemoryHistoryProvider,
    Message,
    SlidingWindowStrategy,
    SummarizationStrategy,
    TokenBudgetComposedStrategy,
)
from agl_agent_framework import PromptBudgetStrategy
from agl_agent_framework._integration import AgentFrameworkIntegration
from agl_testing._captured import check_identity, check_tokens
from agl_testing.bench import Bench
from agl_testing.fake_openai import FakeOptions, FakeReply
from agl_testing.scenario import ANSWER, JUDGE, PLANNER, SYSTEM, WRITER

from agl_core import semconv
from agl_core.errors import ConfigError, ContextOverflowError
from agl_core.tracing import attach

from .programs import agent, clients, lookup, streamed

TALK = [
    Message(role, [f"{role} says {number} " + "word " * 30])
    for number in range(6)
    for role in ("user", "assistant")
]
QUESTION = Message("user", ["What is the price of tea?"])


def words(messages, tools):
    return sum(len(str(message.get("content") or "").split()) for message in messages)


def tokens(messages, tools):
    return words(messages, tools) + 1000 * len(tools)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("whose", ["agent", "client", "run"])
async def test_summaries_are_the_summarizers_and_never_trained(bench, stream, whose):
    async def program(job):
        async with clients(job) as client:
            strategy = SummarizationStrategy(client=client(JUDGE), target_count=2, threshold=0)
            writer = agent(client, WRITER)
            if whose == "agent":
                writer.compaction_strategy = strategy
            if whose == "client":
                writer.client.compaction_strategy = strategy
            given = {"compaction_strategy": strategy} if whose == "run" else {}
            talk = [*copy.deepcopy(TALK), QUESTION]
            if stream:
                await writer.run(talk, stream=True, **given).get_final_response()
            else:
                await writer.run(talk, **given)

    played = await bench.one(program)
    assert played.error is None
    spans = check_identity(played, names={JUDGE: "@summarizer"})
    assert [call.agent for call in played.calls] == ["@summarizer", WRITER]
    summary, answer = (spans[call.id] for call in played.calls)
    (run,) = [span for span in played.spans if span.kind.value == "agent"]
    assert summary.parent_id == answer.parent_id == run.id
    assert played.adapt("*").trajectories.keys() == {WRITER}


async def test_other_strategies_leave_no_trace(bench, tree):
    async def program(job):
        async with clients(job) as client:
            strategy = SlidingWindowStrategy(keep_last_groups=3)
            writer = agent(client, WRITER, compaction_strategy=strategy)
            await writer.run([*copy.deepcopy(TALK), QUESTION])

    played = await bench.one(program)
    assert played.error is None
    check_tokens(played, bench.fake.log)
    assert tree(played.spans, "agent", "llm", "message") == ["agent writer", ". llm writer"]
    assert len(played.calls[0].messages) == 4


def cuts(played):
    spans = [span for span in played.spans if span.name == semconv.AGL_PROMPT_CUT]
    return [span.attributes[semconv.AGL_PROMPT_CUT] for span in spans]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_a_budget_cuts_the_middle_of_the_history(bench, stream, tree):
    async def program(job):
        async with clients(job) as client:
            budget = PromptBudgetStrategy(100, count=words)
            writer = agent(client, WRITER, compaction_strategy=budget)
            talk = [*copy.deepcopy(TALK), QUESTION]
            if stream:
                return await streamed(writer, talk)
            return (await writer.run(talk)).text

    played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    check_tokens(played, bench.fake.log)
    check_identity(played)
    (call,) = played.calls
    assert [message["role"] for message in call.messages] == ["system", "user", "assistant", "user"]
    assert call.messages[0]["content"] == SYSTEM
    assert str(call.messages[1]["content"]).count("user says 5")
    (cut,) = cuts(played)
    assert cut["agent"] == WRITER
    assert cut["messages_cut"] == 10
    assert cut["tokens_after"] <= cut["budget"] == 100 < cut["tokens_before"]
    assert tree(played.spans, "agent", "llm", "message") == [
        "agent writer",
        ". llm writer",
        ". . message agl.prompt_cut",
    ]


async def test_instructions_and_tools_count_in_a_rollout(bench):
    counted = []

    def count(messages, tools):
        counted.append((messages[0], [tool["function"]["name"] for tool in tools]))
        return 10

    async def program(job):
        async with clients(job) as client:
            budget = PromptBudgetStrategy(100, count=count)
            await agent(client, PLANNER, lookup, compaction_strategy=budget).run(job.question)

    played = await bench.one(program)
    assert played.error is None
    assert counted == [({"role": "system", "content": SYSTEM}, ["lookup"])] * 2
    assert cuts(played) == []


async def test_the_gateway_counts_by_the_models_own_template():
    async def program(job):
        async with clients(job) as client:
            writer = agent(client, WRITER, compaction_strategy=PromptBudgetStrategy(300))
            await writer.run([*copy.deepcopy(TALK), QUESTION])

    async with Bench.open(FakeOptions(stable=True, tokenize=True)) as bench:
        attachment = attach(integrations=[AgentFrameworkIntegration()])
        played = await bench.one(program)
        attachment.detach()
    assert played.error is None
    (call,), (cut,) = played.calls, cuts(played)
    assert len(call.prompt_token_ids) <= cut["budget"] == 300 < cut["tokens_before"]
    assert cut["tokens_after"] == len(call.prompt_token_ids)


async def test_a_call_and_its_result_leave_together_and_long_results_are_clipped(bench):
    """Each call is cut from the whole history, which stays as it is."""
    rounds = 4

    def script(body):
        results = [each for each in body["messages"] if each["role"] == "tool"]
        if len(seen) >= rounds:
            return FakeReply(text=ANSWER)
        seen.append(len(results))
        return FakeReply(tool_calls=[{"name": "look_up", "arguments": {"item": "tea"}}])

    def look_up(item: str) -> str:
        """Look up what an item costs."""
        return f"{item} " + "word " * 200

    async def program(job):
        async with clients(job) as client:
            budget = PromptBudgetStrategy(150, count=words)
            history = InMemoryHistoryProvider()
            planner = agent(
                client, PLANNER, look_up, compaction_strategy=budget, context_providers=[history]
            )
            session = planner.create_session()
            response = await planner.run(job.question, session=session)
            return response, session.state[history.source_id]["messages"]

    seen = []
    bench.fake.script = script
    played = await bench.one(program)
    assert played.error is None
    check_tokens(played, bench.fake.log)
    response, history = played.output
    assert response.text == ANSWER
    for call in played.calls[1:]:
        asked, result = call.messages[-2:]
        assert [each["id"] for each in asked["tool_calls"]] == [result["tool_call_id"]]
        assert "characters left out" in str(result["content"])
        assert [each["role"] for each in call.messages] == ["system", "user", "assistant", "tool"]
    results = [content for message in history for content in message.contents]
    whole = [content for content in results if content.type == "function_result"]
    assert len(whole) == rounds
    assert all("left out" not in str(content.result) for content in whole)


async def test_what_has_to_stay_and_does_not_fit_is_an_overflow(bench):
    async def program(job):
        async with clients(job) as client:
            budget = PromptBudgetStrategy(500, count=tokens)
            await agent(client, PLANNER, lookup, compaction_strategy=budget).run(job.question)

    played = await bench.one(program)
    assert isinstance(played.error, ContextOverflowError)
    assert not played.calls


async def test_a_budget_among_other_strategies(bench):
    async def program(job):
        async with clients(job) as client:
            composed = TokenBudgetComposedStrategy(
                token_budget=10,
                tokenizer=_Words(),
                strategies=[PromptBudgetStrategy(100, count=words)],
            )
            writer = agent(client, WRITER, compaction_strategy=composed)
            await writer.run([*copy.deepcopy(TALK), QUESTION])

    played = await bench.one(program)
    assert played.error is None
    check_identity(played)
    assert {cut["agent"] for cut in cuts(played)} == {WRITER}


class _Words:
    def count_tokens(self, text):
        return len(text.split())


async def test_outside_a_rollout_it_does_nothing_unless_it_is_told_how_to_count():
    talk = copy.deepcopy(TALK)
    assert not await PromptBudgetStrategy(10)(talk)
    assert len(talk) == len(TALK)
    assert await PromptBudgetStrategy(40, count=words)(talk)
    assert len(talk) < len(TALK)


async def test_several_texts_and_pictures_of_one_message():
    picture = Content.from_uri("data:image/png;base64,iVBORw0KGgo=", media_type="image/png")
    long = Message("user", ["a" * 50, picture, "b " * 400])
    messages = [long]
    assert await PromptBudgetStrategy(60, count=words)(messages)
    (left,) = messages
    assert [content.type for content in left.contents] == ["text", "uri", "text"] or [
        content.type for content in left.contents
    ] == ["text", "data", "text"]
    assert left.contents[0].text == "a" * 50
    assert "left out" in left.contents[2].text
    assert long.contents[2].text == "b " * 400


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="holds no prompt"):
        PromptBudgetStrategy(0)

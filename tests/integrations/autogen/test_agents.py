"""Agents by themselves: whose turn, what was streamed or thought, and what goes wrong."""

import asyncio

import pytest
from agl_autogen._watching import generator
from agl_testing._captured import check_identity, check_tokens, triplets
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, PLANNER, TOOL_RESULT, WRITER
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent, SocietyOfMindAgent
from autogen_agentchat.base import Response
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import MultiModalMessage, TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken, Image
from autogen_core.models import ModelFamily, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from PIL import Image as Picture

from agl_core import semconv
from agl_core.tracing import agent_scope, current_scope
from agl_core.types import SpanKind

PARTS = "Tea is cheap."


def kinds(played, kind):
    return [span for span in played.spans if span.kind is kind]


def told(text):
    return [TextMessage(content=text, source="user")]


async def said(agent, job):
    return (await agent.run(task=job.question)).messages[-1].content


async def test_a_turn_taken_by_hand_is_an_agents_run(bench, agent, tree):
    async def program(job):
        writer = agent(job, WRITER)
        first = await writer.on_messages(told(job.question), CancellationToken())
        async for item in writer.on_messages_stream(told("And now?"), CancellationToken()):
            last = item
        return [first.chat_message.content, last.chat_message.content]

    played = await bench.one(program)
    assert played.output == [ANSWER, ANSWER]
    check_tokens(played, bench.fake.log)
    check_identity(played)
    assert tree(played.spans)[:4] == ["agent writer", ". llm chat"] * 2
    assert len(triplets(played, WRITER)) == 2


async def test_a_reader_who_leaves_after_the_response_has_ended_the_turn(bench, agent):
    async def program(job):
        stream = agent(job, WRITER).on_messages_stream(told(job.question), CancellationToken())
        async for item in stream:
            if isinstance(item, Response):
                break
        with agent_scope(PLANNER):
            return (await agent(job, PLANNER).run(task="x")).messages[-1].content, stream

    played = await bench.one(program)
    check_identity(played)
    assert [call.agent for call in played.calls] == [WRITER, PLANNER]
    assert {span.status for span in played.spans} == {"ok"}


async def test_a_stream_abandoned_half_way_is_incomplete_and_never_trained(bench, agent):
    begun, left = asyncio.Event(), asyncio.Event()

    async def stall(answer, position):
        if position:
            begun.set()
            await left.wait()

    bench.fake.before_send = stall

    async def program(job):
        writer = agent(job, WRITER, model_client_stream=True)
        reading = asyncio.ensure_future(said(writer, job))
        await begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        left.set()
        return ANSWER

    played = await bench.one(program)
    (call,) = played.calls
    assert not call.complete
    assert kinds(played, SpanKind.AGENT)[0].error == "CancelledError"
    assert all(span.error != "not ended" for span in played.spans)


def thinking(body):
    return FakeReply(text=f"<think>{PARTS}</think>{ANSWER}")


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_autogen_takes_for_a_thought_is_noted_beside_the_raw_tokens(
    bench, agent, streamed
):
    bench.fake.script = thinking

    async def program(job):
        writer = agent(job, WRITER, family=ModelFamily.R1, model_client_stream=streamed)
        first = await said(writer, job)
        await writer.run(task="And now?")
        return first

    played = await bench.one(program)
    assert played.output == ANSWER
    check_tokens(played, bench.fake.log)
    for span in kinds(played, SpanKind.LLM):
        assert span.attributes[semconv.AGL_THOUGHT] == PARTS
    first, second = played.calls
    assert first.choices[0].text == f"<think>{PARTS}</think>{ANSWER}"
    assert [part.text for part in first.parts[0]] == [PARTS, ANSWER]
    assert second.messages[2]["content"] == ANSWER  # the thought left the history
    assert len(played.adapt(WRITER).trajectories[WRITER]) == 2


async def test_usage_and_finish_reason_are_on_the_calls_span(bench, agent):
    async def program(job):
        return await said(agent(job, WRITER), job)

    played = await bench.one(program)
    (span,) = kinds(played, SpanKind.LLM)
    (answer,) = bench.fake.log
    usage = answer.usage
    assert span.attributes[semconv.GEN_AI_USAGE_INPUT_TOKENS] == usage["prompt_tokens"]
    assert span.attributes[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] == usage["completion_tokens"]
    assert span.attributes[semconv.GEN_AI_RESPONSE_FINISH_REASONS] == ["stop"]


async def test_a_retried_call_is_one_call(bench, agent):
    bench.fake.fail(1)

    async def program(job):
        return await said(agent(job, WRITER), job)

    played = await bench.one(program)
    assert played.output == ANSWER
    assert len(kinds(played, SpanKind.LLM)) == 1
    assert [call.superseded for call in played.calls] == [True, False]
    assert len(triplets(played, WRITER)) == 1


async def test_an_answer_that_never_comes_is_the_exact_exception(bench, agent):
    bench.fake.fail(1, status=400)

    async def program(job):
        return await said(agent(job, WRITER), job)

    played = await bench.one(program)
    for span in (*kinds(played, SpanKind.AGENT), *kinds(played, SpanKind.LLM)):
        assert span.attributes[semconv.EXCEPTION_TYPE] == "openai.BadRequestError"
        assert str(played.error) in span.error


async def test_two_agents_of_one_name_are_one_agent_with_two_runs(bench, agent):
    async def program(job):
        for _ in range(2):
            await said(agent(job, WRITER), job)

    played = await bench.one(program)
    check_identity(played)
    assert len({call.agent_run_id for call in played.calls}) == 2
    assert len(triplets(played, WRITER)) == 2


async def test_a_name_in_another_script_arrives_whole(bench, agent):
    name = "作家_é"

    async def program(job):
        return await said(agent(job, name), job)

    played = await bench.one(program)
    check_identity(played)
    assert [call.agent for call in played.calls] == [name]


async def test_an_agent_without_a_name_is_refused_by_autogen_and_costs_nothing(bench, agent):
    async def program(job):
        return await said(agent(job, ""), job)

    played = await bench.one(program)
    assert isinstance(played.error, ValueError)
    assert played.spans == []


async def test_agents_in_tasks_of_one_program_keep_their_names(bench, agent):
    bench.interleave(4)

    async def program(job):
        agents = [agent(job, name) for name in (PLANNER, WRITER, PLANNER, WRITER)]
        await asyncio.gather(*(said(each, job) for each in agents))

    played = await bench.one(program)
    check_identity(played)
    check_tokens(played, bench.fake.log)


async def test_streams_read_in_turns_keep_their_names(bench, agent):
    async def program(job):
        streams = [
            agent(job, name, model_client_stream=True).run_stream(task=job.question)
            for name in (PLANNER, WRITER)
        ]
        while streams:
            for stream in list(streams):
                if await anext(stream, None) is None:
                    streams.remove(stream)

    played = await bench.one(program)
    check_identity(played)
    assert sorted(call.agent for call in played.calls) == [PLANNER, WRITER]


class Echo(BaseChatAgent):
    """An agent of the user's own, which asks a model in its turn."""

    def __init__(self, name, model):
        super().__init__(name, "Echoes.")
        self._model = model

    @property
    def produced_message_types(self):
        return (TextMessage,)

    async def on_messages(self, messages, cancellation_token):
        asked = [UserMessage(content=messages[-1].to_text(), source="user")]
        answer = await self._model.create(asked)
        return Response(chat_message=TextMessage(content=answer.content, source=self.name))

    async def on_reset(self, cancellation_token): ...


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agent_of_a_class_of_ones_own_is_one(bench, client, streamed):
    # Made here, after AutoGen was attached.
    class Louder(Echo):
        async def on_messages(self, messages, cancellation_token):
            response = await super().on_messages(messages, cancellation_token)
            response.chat_message.content += "!"
            return response

    async def program(job):
        writer = Louder(WRITER, client(job, WRITER))
        if not streamed:
            return await said(writer, job)
        return (
            [item async for item in writer.run_stream(task=job.question)][-1].messages[-1].content
        )

    played = await bench.one(program)
    assert played.output == f"{ANSWER}!"
    check_identity(played)
    assert len(kinds(played, SpanKind.AGENT)) == 1


async def test_a_scope_of_a_turns_body_is_not_current_for_its_reader(bench):
    seen = []

    class Inner(Echo):
        async def on_messages_stream(self, messages, cancellation_token):
            with agent_scope("inner"):
                seen.append(current_scope().agent)
                yield TextMessage(content=PARTS, source=self.name)
                seen.append(current_scope().agent)
            yield Response(chat_message=TextMessage(content=ANSWER, source=self.name))

    class Outer(Inner):
        async def on_messages_stream(self, messages, cancellation_token):
            async for item in super().on_messages_stream(messages, cancellation_token):
                seen.append(current_scope().agent)
                yield item

    async def program(job):
        with agent_scope(PLANNER):
            async for _ in Outer(WRITER, None).on_messages_stream([], CancellationToken()):
                seen.append(current_scope().agent)  # noqa: PERF401  in the order of the steps

    played = await bench.one(program)
    assert played.error is None
    assert seen == ["inner", WRITER, PLANNER, "inner", WRITER, PLANNER]


async def test_a_scope_of_an_unobserved_body_is_not_current_for_its_reader(bench):
    async def body(owner):
        with agent_scope("inner"):
            yield current_scope().agent

    async def program(job):
        watched = generator(lambda owner: None)(body, lambda: True)
        with agent_scope(PLANNER) as around:
            items = watched(None)
            assert await anext(items) == "inner"
            assert current_scope() is around
            await items.aclose()
            assert current_scope() is around

    played = await bench.one(program)
    assert played.error is None


class Lines:
    """An iterator that cannot be closed."""

    def __init__(self, *items):
        self._items = list(items)

    def __aiter__(self):
        return self

    async def __anext__(self):
        item = self._items.pop(0)
        if isinstance(item, Exception):
            raise item
        return item


async def test_a_stream_of_an_unusual_kind_passes_as_it_is(bench):
    error = LookupError("no more lines")

    class Reader(Echo):
        def on_messages_stream(self, messages, cancellation_token):
            return Lines("a line", error)

    async def program(job):
        async for _ in Reader(WRITER, None).on_messages_stream([], CancellationToken()):
            pass

    played = await bench.one(program)
    assert played.error is error
    (span,) = kinds(played, SpanKind.AGENT)
    assert span.error == "LookupError: no more lines"
    assert kinds(played, SpanKind.MESSAGE) == []


async def test_a_turn_that_cannot_be_left_ends_in_what_went_wrong(bench):
    class Clumsy(Echo):
        async def on_messages_stream(self, messages, cancellation_token):
            try:
                yield "a line"
            finally:
                raise OSError("no way out")

    async def program(job):
        items = Clumsy(WRITER, None).on_messages_stream([], CancellationToken())
        await anext(items)
        await items.aclose()

    played = await bench.one(program)
    assert isinstance(played.error, OSError)
    (span,) = kinds(played, SpanKind.AGENT)
    assert span.error == "OSError: no way out"


async def test_an_agent_that_is_a_society_stands_above_its_team(bench, agent, client, tree):
    async def program(job):
        team = RoundRobinGroupChat(
            [agent(job, PLANNER)], termination_condition=MaxMessageTermination(2)
        )
        return await said(SocietyOfMindAgent(WRITER, team, client(job, WRITER)), job)

    played = await bench.one(program)
    check_identity(played)
    assert tree(played.spans)[:5] == [
        "agent writer",
        ". operation RoundRobinGroupChat",
        ". . agent planner",
        ". . . llm chat",
        ". llm chat",
    ]


async def test_an_image_goes_to_the_model_as_it_did(bench, agent):
    picture = Image(Picture.new("RGB", (2, 2)))

    async def program(job):
        writer = agent(job, WRITER, vision=True)
        task = MultiModalMessage(content=[job.question, picture], source="user")
        return (await writer.run(task=task)).messages[-1].content

    played = await bench.one(program)
    assert played.output == ANSWER
    check_tokens(played, bench.fake.log)
    content = played.calls[0].messages[-1]["content"]
    assert content[1]["image_url"]["url"].startswith("data:image/png;base64,")


class Quoting(OpenAIChatCompletionClient):
    """A client of the user's own, which asks twice."""

    async def create(self, messages, **options):
        await super().create(messages, **options)
        return await super().create(messages, **options)


async def test_a_client_that_asks_twice_makes_two_calls(bench, agent, client):
    async def program(job):
        return await said(agent(job, WRITER, model=client(job, WRITER, kind=Quoting)), job)

    played = await bench.one(program)
    check_tokens(played, bench.fake.log)
    check_identity(played)
    assert len(triplets(played, WRITER)) == 2


async def test_the_plain_client_in_a_turn_speaks_for_the_agent(bench, client):
    import openai

    class Plain(Echo):
        async def on_messages(self, messages, cancellation_token):
            async with openai.AsyncOpenAI(base_url=self._model[0], api_key=self._model[1]) as plain:
                answer = await plain.chat.completions.create(
                    model=self._model[2], messages=[{"role": "user", "content": "Hello"}]
                )
            text = answer.choices[0].message.content
            return Response(chat_message=TextMessage(content=text, source=self.name))

    async def program(job):
        return await said(Plain(WRITER, (job.base_url, job.api_key, job.model(WRITER))), job)

    played = await bench.one(program)
    assert played.output == ANSWER
    check_identity(played)


async def test_a_formatter_of_the_users_that_raises_is_the_agents_error(bench, agent):
    async def lookup(item: str) -> str:
        """Look up what an item costs."""
        return TOOL_RESULT

    def broken(call, result):
        raise LookupError("no format")

    async def program(job):
        planner = agent(job, PLANNER, tools=[lookup], tool_call_summary_formatter=broken)
        return await said(planner, job)

    played = await bench.one(program)
    assert isinstance(played.error, LookupError)
    assert kinds(played, SpanKind.AGENT)[0].error == "LookupError: no format"
    assert kinds(played, SpanKind.TOOL)[0].status == "ok"


def test_an_agent_outlives_the_attachment():
    assert not hasattr(AssistantAgent.on_messages, "__wrapped__")
    assert not hasattr(Echo.on_messages, "__wrapped__")

"""The middleware beside the user's own, bad input, and names of every kind."""

import asyncio
import json
import logging

import pytest
from agent_framework import (
    Agent,
    AgentMiddleware,
    ChatMiddleware,
    ChatResponse,
    Content,
    ContextProvider,
    FunctionMiddleware,
    Message,
    MiddlewareTermination,
    RawAgent,
    tool,
)
from agent_framework.exceptions import ChatClientException
from agl_agent_framework import AglMiddleware
from agl_testing._captured import check_identity, check_tokens
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, JUDGE, PLANNER, SYSTEM, WRITER

from agl_core.errors import CaptureError
from agl_core.tracing import agent_scope
from agl_core.types import SpanKind

from .programs import agent, clients, lookup


def checked(played, bench, **names):
    if played.error is not None:
        raise played.error
    check_tokens(played, bench.fake.log)
    return check_identity(played, names=names)


class Twice(AgentMiddleware):
    async def process(self, context, call_next):
        await call_next()
        await call_next()


class CallsTwice(ChatMiddleware):
    async def process(self, context, call_next):
        await call_next()
        await call_next()


async def test_a_run_that_middleware_repeats_is_two_runs(bench):
    async def program(job):
        async with clients(job) as client:
            await agent(client, WRITER, middleware=[Twice()]).run(job.question)

    played = await bench.one(program)
    checked(played, bench)
    assert len({call.agent_run_id for call in played.calls}) == 2
    assert len(played.calls) == 2


async def test_a_call_that_the_clients_middleware_repeats_is_two_calls_of_one_run(bench):
    async def program(job):
        async with clients(job, middleware=[CallsTwice()]) as client:
            await agent(client, WRITER).run(job.question)

    played = await bench.one(program)
    checked(played, bench)
    assert len({call.agent_run_id for call in played.calls}) == 1
    assert len(played.calls) == 2


async def test_two_requests_inside_one_recorded_call_are_no_sample(bench):
    """Ours lies outside of what a run brings, and sees one call where two are sent."""

    async def program(job):
        async with clients(job) as client:
            await agent(client, WRITER).run(job.question, middleware=[CallsTwice()])

    played = await bench.one(program)
    with pytest.raises(CaptureError, match="second request"):
        played.adapt(WRITER)


async def test_a_request_that_the_client_sends_again_is_one_call(bench):
    async def program(job):
        async with clients(job) as client:
            return (await agent(client, WRITER).run(job.question)).text

    bench.fake.fail(1)
    played = await bench.one(program)
    assert played.output == ANSWER
    assert [call.tries for call in played.calls] == [1, 2]
    assert len({call.id for call in played.calls}) == 1
    assert len([span for span in played.spans if span.kind is SpanKind.LLM]) == 1
    ((trajectory,),) = played.adapt(WRITER).trajectories.values()
    assert len(trajectory.calls) == 1


async def test_a_refused_request_ends_with_the_exact_exception(bench):
    async def program(job):
        async with clients(job) as client:
            await agent(client, WRITER).run(job.question)

    bench.fake.fail(1, status=400)
    played = await bench.one(program)
    assert isinstance(played.error, ChatClientException)
    shown = [span for span in played.spans if span.kind in (SpanKind.AGENT, SpanKind.LLM)]
    assert [span.status for span in shown] == ["error", "error"]
    for span in shown:
        assert span.attributes["exception.type"] == "agent_framework.exceptions.ChatClientException"
        assert "BadRequestError" in span.attributes["exception.stacktrace"]


@pytest.mark.parametrize("count", [1, 2])
async def test_given_by_hand_and_attached_records_once(bench, tree, count):
    async def program(job):
        async with clients(job) as client:
            given = [AglMiddleware() for _ in range(count)]
            planner = agent(client, PLANNER, lookup, middleware=given)
            await planner.run(job.question, middleware=given)

    played = await bench.one(program)
    checked(played, bench)
    assert tree(played.spans, "agent", "llm", "tool") == [
        "agent planner",
        ". llm planner",
        ". tool lookup",
        ". llm planner",
    ]


async def test_given_by_hand_is_enough(unattached, tree):
    async def program(job):
        async with clients(job) as client:
            given = [AglMiddleware()]
            await agent(client, PLANNER, lookup, middleware=given).run(job.question)

    played = await unattached.one(program)
    checked(played, unattached)
    assert tree(played.spans, "agent", "llm", "tool") == [
        "agent planner",
        ". llm planner",
        ". tool lookup",
        ". llm planner",
    ]


class Stops(AgentMiddleware):
    async def process(self, context, call_next):
        raise MiddlewareTermination


class Raises(AgentMiddleware):
    def __init__(self, error):
        self.error = error

    async def process(self, context, call_next):
        raise self.error


async def test_middleware_that_stops_the_run_is_no_failure(bench):
    async def program(job):
        async with clients(job) as client:
            assert await agent(client, WRITER).run(job.question, middleware=[Stops()]) is None

    played = await bench.one(program)
    assert played.error is None
    assert [span.status for span in played.spans if span.kind is SpanKind.AGENT] == ["ok"]


@pytest.mark.parametrize("outside", [True, False])
async def test_middleware_that_raises_is_the_users_own_error(bench, outside):
    error = ValueError("mine")

    async def program(job):
        async with clients(job) as client:
            mine = [Raises(error)]
            writer = agent(client, WRITER, middleware=mine if outside else None)
            await writer.run(job.question, middleware=None if outside else mine)

    played = await bench.one(program)
    assert played.error is error
    failed = [span for span in played.spans if span.kind is SpanKind.AGENT]
    assert [span.error for span in failed] == ([] if outside else ["ValueError: mine"])


class Remembers(ContextProvider):
    """Asks a model for itself around the agent's run."""

    def __init__(self, client):
        super().__init__("remembers")
        self.client = client

    async def before_run(self, *, agent, session, context, state):
        await self.client.get_response(["What do you remember?"])


async def test_a_context_providers_call_is_not_the_agents(bench):
    async def program(job):
        async with clients(job) as client:
            await agent(client, WRITER, context_providers=[Remembers(client(JUDGE))]).run("tea?")

    played = await bench.one(program)
    check_identity(played, names={JUDGE: "@context"})
    assert [call.agent for call in played.calls] == ["@context", WRITER]
    assert played.adapt(WRITER).trajectories.keys() == {WRITER}


async def test_a_scope_of_the_users_own_in_a_tool_names_the_call(bench):
    async def program(job):
        async with clients(job) as client:

            async def review(item: str) -> str:
                """Ask the judge."""
                with agent_scope(JUDGE):
                    return (await client(JUDGE).get_response([item])).text

            await agent(client, PLANNER, review).run(job.question)

    played = await bench.one(program)
    checked(played, bench)
    assert [call.agent for call in played.calls] == [PLANNER, JUDGE, PLANNER]


async def test_an_untrainable_scope_reaches_the_agent_inside(bench):
    async def program(job):
        async with clients(job) as client:
            with agent_scope("outer", trainable=False):
                await agent(client, WRITER).run(job.question)

    played = await bench.one(program)
    check_identity(played)
    assert played.adapt(WRITER).losses.counts["calls_untrainable"] == 1


@pytest.mark.parametrize("name", ["a/b c", "作家", "écrivain%2F", "x" * 300])
async def test_names_of_every_kind_arrive_unchanged(bench, name):
    async def program(job):
        async with clients(job) as client:
            await Agent(client(WRITER), SYSTEM, name=name).run(job.question)

    played = await bench.one(program)
    checked(played, bench, writer=name)
    assert played.adapt(name).seen == {name}


@pytest.mark.parametrize("scope", [None, WRITER])
async def test_an_agent_without_a_name_speaks_for_the_scope_around_it(bench, scope):
    async def program(job):
        async with clients(job) as client:
            unnamed = Agent(client(WRITER), SYSTEM)
            if scope is None:
                await unnamed.run(job.question)
            else:
                with agent_scope(scope):
                    await unnamed.run(job.question)

    played = await bench.one(program)
    checked(played, bench, writer=scope)


async def test_two_agents_of_one_name_are_two_runs_of_it(bench):
    async def program(job):
        async with clients(job) as client:
            agents = [agent(client, WRITER), agent(client, WRITER)]
            await asyncio.gather(*(each.run(job.question) for each in agents))

    bench.interleave(2)
    played = await bench.one(program)
    checked(played, bench)
    assert len({call.agent_run_id for call in played.calls}) == 2


async def test_one_agent_used_twice_at_once(bench):
    async def program(job):
        async with clients(job) as client:
            writer = agent(client, WRITER, lookup)
            await asyncio.gather(*(writer.run(job.question) for _ in range(5)))

    bench.interleave(5)
    played = await bench.one(program)
    checked(played, bench)
    runs = [call.agent_run_id for call in played.calls]
    assert sorted(runs.count(run) for run in set(runs)) == [2] * 5


async def test_a_raw_agent_speaks_for_the_scope_around_it(bench):
    async def program(job):
        async with clients(job) as client:
            with agent_scope(WRITER):
                await RawAgent(client(WRITER), SYSTEM, name="unseen").run(job.question)

    checked(await bench.one(program), bench)


@pytest.mark.parametrize("arguments", ["not json", "[1]", '{"item": 1', "", "null"])
async def test_arguments_that_are_no_object_are_the_frameworks_business(bench, arguments):
    def script(body):
        if body["messages"][-1]["role"] == "tool":
            return FakeReply(text=ANSWER)
        return FakeReply(tool_calls=[{"name": "lookup", "arguments": arguments}])

    async def program(job):
        async with clients(job) as client:
            return (await agent(client, PLANNER, lookup).run(job.question)).text

    bench.fake.script = script
    played = await bench.one(program)
    checked(played, bench)
    assert played.output == ANSWER


class StopsAfter(FunctionMiddleware):
    async def process(self, context, call_next):
        await call_next()
        raise MiddlewareTermination(result=context.result)


async def test_a_huge_result_is_cut_in_the_span(bench):
    huge = "x" * 10 * 2**20

    def lookup(item: str) -> str:
        """Look up what an item costs."""
        return huge

    async def program(job):
        async with clients(job) as client:
            planner = agent(client, PLANNER, lookup, middleware=[StopsAfter()])
            return (await planner.run(job.question)).messages[-1].contents[0].result

    played = await bench.one(program)
    assert (played.output, played.error) == (huge, None)
    (span,) = [span for span in played.spans if span.kind is SpanKind.TOOL]
    assert span.status == "ok"
    assert len(span.attributes["gen_ai.tool.call.result"]) < 300_000


async def test_images_in_messages_and_results(bench):
    pixel = "data:image/png;base64,iVBORw0KGgo="

    @tool
    def lookup(item: str):
        """Look up what an item looks like."""
        return [Content.from_text("tea"), Content.from_uri(pixel, media_type="image/png")]

    async def program(job):
        async with clients(job) as client:
            image = Content.from_uri(pixel, media_type="image/png")
            asked = Message("user", [Content.from_text("What is it?"), image])
            await agent(client, PLANNER, lookup).run([asked])

    played = await bench.one(program)
    checked(played, bench)
    (span,) = [span for span in played.spans if span.kind is SpanKind.TOOL]
    text, image = span.attributes["gen_ai.tool.call.result"]
    assert text == "tea"
    assert image["uri"] == pixel


class Caches(ChatMiddleware):
    async def process(self, context, call_next):
        context.result = ChatResponse(messages=[Message("assistant", [ANSWER])])


async def test_an_answer_that_was_never_sent_has_no_tokens(bench):
    async def program(job):
        async with clients(job) as client:
            return (await agent(client, WRITER).run(job.question, middleware=[Caches()])).text

    played = await bench.one(program)
    assert played.output == ANSWER
    with pytest.raises(CaptureError, match="never passed through the gateway"):
        played.adapt(WRITER)


async def test_a_tool_that_fails_ends_as_an_error_and_the_model_goes_on(bench, caplog):
    def lookup(item: str) -> str:
        """Look up what an item costs."""
        raise KeyError(item)

    async def program(job):
        async with clients(job) as client:
            return (await agent(client, PLANNER, lookup).run(job.question)).text

    with caplog.at_level(logging.CRITICAL):
        played = await bench.one(program)
    checked(played, bench)
    assert played.output == ANSWER
    (span,) = [span for span in played.spans if span.kind is SpanKind.TOOL]
    assert (span.status, span.attributes["exception.type"]) == ("error", "builtins.KeyError")
    assert span.agent == PLANNER


async def test_tools_have_their_inputs_and_ids(bench):
    async def program(job):
        async with clients(job) as client:
            await agent(client, PLANNER, lookup).run(job.question)

    played = await bench.one(program)
    (span,) = [span for span in played.spans if span.kind is SpanKind.TOOL]
    assert span.attributes["gen_ai.tool.call.arguments"] == {"item": "tea"}
    (asked,) = played.calls[0].choices[0].tool_calls
    assert span.attributes["gen_ai.tool.call.id"] == asked["id"]
    assert json.loads(asked["function"]["arguments"]) == {"item": "tea"}

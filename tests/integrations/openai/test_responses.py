"""The plain client through the whole integration contract, speaking Responses."""

import asyncio
import json
from typing import ClassVar

import openai
import pytest
from agl_openai._integration import OpenAIIntegration
from agl_testing.bench import Bench
from agl_testing.fake_openai import FakeReply
from agl_testing.integration_contract import IntegrationContract
from agl_testing.scenario import (
    ANSWER,
    ITEM,
    PLANNER,
    SYSTEM,
    TOOL,
    TOOL_RESULT,
    WRITER,
    ScenarioProgram,
)
from pydantic import BaseModel

from agl_core.tracing import agent_scope, emit_tool_call
from agl_core.types import SpanKind


class Price(BaseModel):
    item: str


LOOKUP = {
    "type": "function",
    "name": TOOL,
    "parameters": {
        "type": "object",
        "properties": {"item": {"type": "string"}},
        "required": ["item"],
        "additionalProperties": False,
    },
    "strict": True,
}


def lookup(item):
    return TOOL_RESULT


def _asked(job, agent, items, **fields):
    return {"model": job.model(agent), "instructions": SYSTEM, "input": items, **fields}


def _user(text):
    return {"role": "user", "content": text}


def _calls(response):
    return [item for item in response.output if item.type == "function_call"]


def _use(tools, response):
    """Run the tools that a response asks for; gives the items that go on from it."""
    items = [item.to_dict() for item in response.output]
    for call in _calls(response):
        arguments = json.loads(call.arguments)
        result = tools[call.name](**arguments)
        emit_tool_call(call.name, arguments, result, tool_call_id=call.call_id)
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    return items


def _last(events):
    """The response at the end of a stream of raw events."""
    (final,) = [event.response for event in events if event.type == "response.completed"]
    return final


class ResponsesProgram(ScenarioProgram):
    """The scenario as a user of the bare client writes it with ``client.responses``."""

    lacks: ClassVar = {
        "judge": "the client runs no tools, so it cannot tell that one runs: whoever calls a model "
        "inside a tool names the judge with agl.agent_scope",
    }
    hides_usage = "the client has no hooks: a call's span is that of its request"

    def run(self, job):
        with _client(job) as client:
            return self._shop(job, lambda body: client.responses.create(**body))

    def stream(self, job):
        with _client(job) as client:
            return self._shop(
                job, lambda body: _last(list(client.responses.create(**body, stream=True)))
            )

    async def arun(self, job):
        async with _async_client(job) as client:

            async def ask(body):
                return await client.responses.create(**body)

            return await self._ashop(job, ask)

    async def astream(self, job):
        async with _async_client(job) as client:

            async def ask(body):
                async with client.responses.stream(**body) as events:
                    return await events.get_final_response()

            return await self._ashop(job, ask)

    def structured(self, job):
        with _client(job) as client, agent_scope(WRITER):
            body = _asked(job, WRITER, job.question, text_format=Price)
            return client.responses.parse(**body).output_parsed.model_dump()

    async def parallel(self, job):
        async with _async_client(job) as client:

            async def ask(agent):
                with agent_scope(agent):
                    body = _asked(job, agent, job.question)
                    return (await client.responses.create(**body)).output_text

            return await asyncio.gather(ask(PLANNER), ask(WRITER))

    def delegate(self, job):
        with _client(job) as client:

            def ask(body):
                return client.responses.create(**body)

            def ask_writer(item):
                with agent_scope(WRITER):
                    return ask(_asked(job, WRITER, item)).output_text

            return self._plan(job, ask, ask_writer)

    def fail(self, job, error):
        def broken(item):
            raise error

        with _client(job) as client:
            return self._plan(job, lambda body: client.responses.create(**body), broken)

    def _shop(self, job, ask):
        plan = self._plan(job, ask, lookup)
        with agent_scope(WRITER):
            return ask(_asked(job, WRITER, plan)).output_text

    def _plan(self, job, ask, tool):
        items = [_user(job.question)]
        with agent_scope(PLANNER):
            while True:
                response = ask(_asked(job, PLANNER, items, tools=[LOOKUP]))
                if not _calls(response):
                    return response.output_text
                items += _use({TOOL: tool}, response)

    async def _ashop(self, job, ask):
        items = [_user(job.question)]
        with agent_scope(PLANNER):
            response = await ask(_asked(job, PLANNER, items, tools=[LOOKUP]))
            while _calls(response):
                items += _use({TOOL: lookup}, response)
                response = await ask(_asked(job, PLANNER, items, tools=[LOOKUP]))
        with agent_scope(WRITER):
            return (await ask(_asked(job, WRITER, response.output_text))).output_text


def _client(job):
    return openai.OpenAI(base_url=job.base_url, api_key=job.api_key)


def _async_client(job):
    return openai.AsyncOpenAI(base_url=job.base_url, api_key=job.api_key)


class TestResponses(IntegrationContract):
    package = "agl_openai"
    frameworks = ("openai",)

    def integration(self):
        return OpenAIIntegration()

    def program(self):
        return ResponsesProgram()


@pytest.fixture
async def bench():
    async with Bench.open(integrations=[OpenAIIntegration()]) as bench:
        yield bench


def streamed(job):
    with _client(job) as client, agent_scope(WRITER):
        body = _asked(job, WRITER, job.question)
        with client.responses.stream(**body) as events:
            text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
            assert events.get_final_response().output_text == text
        return text


def raw(job):
    with _client(job) as client, agent_scope(WRITER):
        answer = client.responses.with_raw_response.create(**_asked(job, WRITER, job.question))
        return answer.parse().output_text


@pytest.mark.parametrize("action", [streamed, raw])
async def test_every_way_of_calling_is_captured(bench, action):
    played = await bench.one(action)
    assert (played.output, played.error) == (ANSWER, None)
    (call,), (answer,) = played.calls, bench.fake.log
    assert (call.agent, call.response_id) == (WRITER, answer.id)
    assert call.choices[0].token_ids.tolist() == answer.choices[0].token_ids
    (span,) = [span for span in played.spans if span.kind is SpanKind.LLM]
    assert (span.call_id, span.agent, span.status) == (call.id, WRITER, "ok")
    assert played.adapt(WRITER).calls == 1


async def test_structured_output_can_be_streamed(bench):
    def action(job):
        with _client(job) as client, agent_scope(WRITER):
            body = _asked(job, WRITER, job.question, text_format=Price)
            with client.responses.stream(**body) as events:
                return events.get_final_response().output_parsed

    played = await bench.one(action)
    assert played.output == Price(item=ITEM)
    assert played.adapt(WRITER).calls == 1


async def test_a_retried_response_is_one_call(bench):
    bench.fake.fail(1)
    played = await bench.one(raw)
    assert played.output == ANSWER
    assert [call.tries for call in played.calls][-1] == 2
    assert len([span for span in played.spans if span.kind is SpanKind.LLM]) == 1
    assert played.adapt(WRITER).calls == 1


async def test_reasoning_goes_back_with_the_next_turn(bench):
    bench.fake.script = lambda _: FakeReply(reasoning="let me think", text="so")

    def action(job):
        with _client(job) as client, agent_scope(WRITER):
            first = client.responses.create(**_asked(job, WRITER, job.question))
            items = [_user(job.question), *(item.to_dict() for item in first.output), _user("and?")]
            client.responses.create(**_asked(job, WRITER, items))
            return [item.type for item in first.output]

    played = await bench.one(action)
    assert played.output == ["reasoning", "message"]
    assert bench.fake.log[1].body["messages"][2] == {
        "role": "assistant",
        "content": "so",
        "reasoning_content": "let me think",
    }
    assert [call.choices[0].reasoning for call in played.calls] == ["let me think"] * 2


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ],
)
async def test_what_is_not_served_raises_at_once_and_names_the_field(bench, fields, field):
    def action(job):
        with _client(job) as client, agent_scope(WRITER):
            client.responses.create(**_asked(job, WRITER, job.question, **fields))

    played = await bench.one(action)
    assert isinstance(played.error, openai.BadRequestError)
    assert played.error.param == field
    (call,) = played.calls
    assert (call.status_code, call.tries) == (400, 1)


@pytest.mark.parametrize("high_level", [False, True])
async def test_a_stream_that_breaks_off_raises(bench, high_level):
    async def before_send(answered, position):
        if position == 4:
            raise ConnectionResetError

    bench.fake.before_send = before_send

    def action(job):
        with _client(job) as client, agent_scope(WRITER):
            body = _asked(job, WRITER, job.question)
            if high_level:
                with client.responses.stream(**body) as events:
                    events.get_final_response()
            else:
                list(client.responses.create(**body, stream=True))

    played = await bench.one(action)
    assert isinstance(played.error, openai.APIError)
    (call,) = played.calls
    assert not call.complete

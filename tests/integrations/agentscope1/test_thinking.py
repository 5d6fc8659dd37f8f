"""What a model thinks in tags comes as a thinking block, streamed or not; the record stays raw."""

import inspect

import pytest
from agentscope.message import TextBlock
from agentscope.model import ChatResponse, OpenAIChatModel
from agl_agentscope import ThinkTagsModel
from agl_agentscope._v1.thinking import split
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import JUDGE, WRITER

from .programs import agent, models, reply, since, text_result, user


def shown(content):
    return [(block["type"], block[block["type"]]) for block in content]


ANSWERS = {
    "<think>6 times 7</think>\n\n42": [("thinking", "6 times 7"), ("text", "42")],
    "6 times 7</think>42": [("thinking", "6 times 7"), ("text", "42")],
    "a <think>b</think> c": [("text", "a"), ("thinking", "b"), ("text", "c")],
    "<think></think>42": [("text", "42")],
    "`<think>` is a tag": [("text", "`<think>` is a tag")],
    "42": [("text", "42")],
    " ": [("text", " ")],
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("text", "expected"), ANSWERS.items())
async def test_agents_get_thinking_and_text(bench, stream, text, expected):
    bench.fake.script = lambda body: FakeReply(text=text)

    async def program(job):
        async with models(job, stream=stream) as model:
            answer = await agent(model, WRITER)(user(job.question))
            return shown(answer.content)

    played = await bench.one(program)
    assert (played.output, played.error) == (expected, None)
    (call,) = played.calls
    assert call.choices[0].text == text


async def test_thoughts_are_not_sent_again(bench):
    bench.fake.script = lambda body: FakeReply(text="<think>hm</think>42")

    async def program(job):
        async with models(job) as model:
            writer = agent(model, WRITER)
            await reply(writer, job.question)
            return await reply(writer, "sure?")

    played = await bench.one(program)
    assert played.output == "42"
    assert "hm" not in str(played.calls[1].messages)


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_every_chunk_of_a_stream_has_all_thoughts_until_then(size):
    text = "<think>6 times 7</think>42 and more"

    async def chunks():
        for end in range(size, len(text) + size, size):
            yield ChatResponse(content=[TextBlock(type="text", text=text[:end])])

    seen = [shown(chunk.content) async for chunk in split(chunks())]
    assert seen[-1] == [("thinking", "6 times 7"), ("text", "42 and more")]
    assert len(seen) == -(-len(text) // size)


async def test_a_model_that_a_tool_asks_is_left_alone(bench):
    bench.fake.script = lambda body: (
        FakeReply(tool_calls=[{"name": "review", "arguments": '{"item": "tea"}'}])
        if body.get("tools") and body["messages"][-1]["role"] != "tool"
        else FakeReply(text="<think>hm</think>42")
    )
    got = []

    async def program(job):
        async with models(job) as model:

            async def review(item: str):
                """Review.

                Args:
                    item (str): the item
                """
                answer = await model(JUDGE)([{"role": "user", "content": item}])
                got.extend(shown(answer.content))
                return text_result("fine")

            await reply(agent(model, WRITER, review), job.question)

    played = await bench.one(program)
    assert played.error is None
    assert got == [("text", "<think>hm</think>42")]


@pytest.mark.parametrize("stream", [False, True])
async def test_without_a_rollout_the_model_splits(unattached, stream):
    unattached.fake.script = lambda body: FakeReply(text="<think>hm</think>42")

    async def program(job):
        async with models(job, stream=stream) as model:
            plain = await agent(model, WRITER)(user("?"))
            splits = await agent(lambda name: ThinkTagsModel(model(name)), WRITER)(user("?"))
            return shown(plain.content), shown(splits.content)

    played = await unattached.one(program)
    assert (played.output, played.error) == (
        ([("text", "<think>hm</think>42")], [("thinking", "hm"), ("text", "42")]),
        None,
    )


async def test_both_are_one(bench):
    bench.fake.script = lambda body: FakeReply(text="<think>hm</think>42")

    async def program(job):
        async with models(job) as model:
            splits = agent(lambda name: ThinkTagsModel(model(name)), WRITER)
            return shown((await splits(user("?"))).content)

    played = await bench.one(program)
    assert played.output == [("thinking", "hm"), ("text", "42")]


async def test_a_wrapped_model_has_the_fields_of_its_own(unattached):
    async def program(job):
        async with models(job) as model:
            inner = model(WRITER)
            outer = ThinkTagsModel(inner)
            outer.stream = True
            return inner.stream, outer.model_name == inner.model_name

    assert (await unattached.one(program)).output == (True, True)


@since('"reasoning"' in inspect.getsource(OpenAIChatModel), "field `reasoning`")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_servers_own_field_stays_a_block(bench, stream):
    bench.fake.script = lambda body: FakeReply(text="42", reasoning="hm")

    async def program(job):
        async with models(job, stream=stream) as model:
            return shown((await agent(model, WRITER)(user("?"))).content)

    played = await bench.one(program)
    assert played.output == [("thinking", "hm"), ("text", "42")]

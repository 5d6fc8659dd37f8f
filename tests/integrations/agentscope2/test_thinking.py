"""What a model thinks in tags comes as a thinking block, streamed or not; the record stays raw."""

import pytest
from agentscope.message import TextBlock, ThinkingBlock
from agentscope.model import ChatResponse
from agl_agentscope import ThinkTagsMiddleware
from agl_agentscope._v2.thinking import split
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import WRITER

from .programs import agent, models, reply, user


def shown(content):
    return [
        ("thinking", block.thinking) if isinstance(block, ThinkingBlock) else ("text", block.text)
        for block in content
    ]


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
            answer = await agent(model, WRITER).reply(user(job.question))
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
async def test_a_stream_gives_what_the_whole_gives(size):
    text = "<think>6 times 7</think>42 and more"

    async def chunks():
        for at in range(0, len(text), size):
            yield ChatResponse(
                content=[TextBlock(text=text[at : at + size], id="t")], is_last=False
            )
        yield ChatResponse(content=[TextBlock(text=text, id="t")], is_last=True)

    seen = [chunk async for chunk in split(chunks())]
    assert [chunk.is_last for chunk in seen].count(True) == 1
    assert shown(seen[-1].content) == [("thinking", "6 times 7"), ("text", "42 and more")]
    pieces = [block for chunk in seen[:-1] for block in chunk.content]
    assert "".join(b.thinking for b in pieces if isinstance(b, ThinkingBlock)) == "6 times 7"
    assert "".join(b.text for b in pieces if isinstance(b, TextBlock)) == "42 and more"


async def test_without_a_rollout_the_middleware_splits(unattached):
    unattached.fake.script = lambda body: FakeReply(text="<think>hm</think>42")

    async def program(job):
        async with models(job) as model:
            plain = await agent(model, WRITER).reply(user("?"))
            splits = agent(model, WRITER, middlewares=[ThinkTagsMiddleware()])
            return shown(plain.content), shown((await splits.reply(user("?"))).content)

    played = await unattached.one(program)
    assert played.output == (
        [("text", "<think>hm</think>42")],
        [("thinking", "hm"), ("text", "42")],
    )


async def test_a_servers_own_field_stays_a_block(bench):
    bench.fake.script = lambda body: FakeReply(text="42", reasoning="hm")

    async def program(job):
        async with models(job) as model:
            return shown((await agent(model, WRITER).reply(user("?"))).content)

    played = await bench.one(program)
    assert played.output == [("thinking", "hm"), ("text", "42")]

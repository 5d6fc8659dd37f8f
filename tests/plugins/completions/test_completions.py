"""Legacy completions and embeddings through the gateway, asked for by OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from agl_testing.vocabulary import decode

PROMPT = "<|im_start|>user\nhello\n"
"""Tokens of a template are what they say in a completion's prompt."""


async def test_the_prompt_is_what_was_written(world: Any, client: Any) -> None:
    world.server.script = lambda body: " world"
    answer = await client.completions.create(model="any", prompt=PROMPT, max_tokens=5)
    assert answer.choices[0].text == " world"
    assert (answer.object, answer.choices[0].finish_reason) == ("text_completion", "stop")
    (call,) = await world.calls(client.attempt)
    assert decode(call.prompt_token_ids) == PROMPT
    assert answer.usage.prompt_tokens == len(call.prompt_token_ids)
    assert answer.usage.completion_tokens == len(call.choices[0].token_ids)
    assert call.sampling.max_tokens == 5


async def test_a_stream_has_the_text_of_the_whole_answer(world: Any, client: Any) -> None:
    world.server.script = lambda body: "one two three"
    stream = await client.completions.create(
        model="any", prompt=["count"], stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    texts = [choice.text for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == "one two three"
    assert len(texts) > 1
    assert [c.finish_reason for chunk in chunks for c in chunk.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens > 0
    (call,) = await world.calls(client.attempt)
    assert decode(call.choices[0].token_ids).startswith("one two three")
    assert call.sampling.max_tokens == 16


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, 2, 3]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "a", "n": 2}, "n"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "logprobs": 0}, "logprobs"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "suffix": "z"}, "suffix"),
    ],
)
async def test_what_cannot_be_served_is_refused(client: Any, fields: Any, named: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model="any", **fields)
    assert refused.value.param == named
    assert named in str(refused.value)


async def test_neutral_values_are_served(world: Any, client: Any) -> None:
    await client.completions.create(model="any", prompt="a", n=1, echo=False, suffix="", best_of=1)
    (call,) = await world.calls(client.attempt)
    assert set(call.sampling.extra) == {
        "add_generation_prompt",
        "add_special_tokens",
        "chat_template",
    }


async def test_a_broken_stream_raises_in_the_client(world: Any, client: Any) -> None:
    async def end(answer: Any, position: int) -> None:
        if position == 2:
            raise ConnectionResetError

    world.server.before_send = end
    stream = await client.completions.create(model="any", prompt="one two", stream=True)
    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass


async def test_embeddings_are_those_of_the_named_policy(world: Any, client: Any) -> None:
    await world.route("vectors", (), trainable=False)
    answer = await client.embeddings.create(
        model="vectors", input=["a", "bcd"], encoding_format="float"
    )
    assert [row.embedding for row in answer.data] == [[1.0], [3.0]]
    assert answer.model == "weights-1"
    assert await world.calls(client.attempt) == []


async def test_embeddings_of_no_server_are_refused(world: Any, client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="no name"):
        await client.embeddings.create(model="", input="a")
    with pytest.raises(openai.NotFoundError):
        await client.embeddings.create(model="nowhere", input="a")
    await world.gateway.seal(client.attempt.id)
    with pytest.raises(openai.APIStatusError) as ended:
        await client.embeddings.create(model="trained", input="a")
    assert ended.value.status_code == 410

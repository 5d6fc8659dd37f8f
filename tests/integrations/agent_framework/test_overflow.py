"""A prompt over the context window that nobody cuts ends its rollout as just that."""

import logging

import pytest
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from agent_framework.orchestrations import SequentialBuilder
from agl_testing.scenario import WRITER

from agl_core.runner._attempt import failure_of
from agl_core.types import FailureKind

from .programs import agent, clients, streamed

OVERFLOW = {
    "error": {
        "message": "This model's maximum context length is 10 tokens, got 99",
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
    }
}


async def plain(writer, text):
    await writer.run(text)


async def in_a_workflow(writer, text):
    await SequentialBuilder(participants=[writer]).build().run(text)


async def in_a_streamed_workflow(writer, text):
    async for _ in SequentialBuilder(participants=[writer]).build().run(text, stream=True):
        pass


@pytest.mark.parametrize("client_type", [OpenAIChatClient, OpenAIChatCompletionClient])
@pytest.mark.parametrize("form", [plain, streamed, in_a_workflow, in_a_streamed_workflow])
async def test_an_overflow_is_known_through_what_the_framework_wraps(
    bench, caplog, client_type, form
):
    async def program(job):
        async with clients(job, client_type=client_type) as client:
            await form(agent(client, WRITER), job.question)

    bench.fake.fail(1, status=400, body=OVERFLOW)
    with caplog.at_level(logging.CRITICAL):
        played = await bench.one(program)
    assert played.error is not None
    found = failure_of(played.error, stage=FailureKind.AGENT, origins=frozenset(), late=False)
    assert found.kind is FailureKind.CONTEXT_OVERFLOW
    (call,) = played.calls
    assert call.status_code == 400
    assert played.adapt(WRITER).trajectories == {}

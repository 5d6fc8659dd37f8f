"""The client's default, Responses: history is sent, not kept at the server."""

import pytest
from agent_framework.exceptions import ChatClientException
from agent_framework.openai import OpenAIChatClient
from agl_testing._captured import check_identity, check_tokens
from agl_testing.scenario import ANSWER, PLANNER

from .programs import agent, clients, lookup, streamed


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_an_agent_that_says_nothing_of_it_sends_its_history(bench, stream):
    async def program(job):
        async with clients(job, client_type=OpenAIChatClient) as client:
            planner = agent(client, PLANNER, lookup)
            if stream:
                return await streamed(planner, job.question)
            return (await planner.run(job.question)).text

    played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    check_tokens(played, bench.fake.log)
    check_identity(played)
    assert [len(call.messages) for call in played.calls] == [2, 4]


async def test_conversations_go_on_in_their_session(bench):
    async def program(job):
        async with clients(job, client_type=OpenAIChatClient) as client:
            planner = agent(client, PLANNER)
            session = planner.create_session()
            for text in ("tea?", "coffee?"):
                await planner.run(text, session=session)

    played = await bench.one(program)
    assert played.error is None
    assert [len(call.messages) for call in played.calls] == [2, 4]


async def test_who_wants_it_kept_is_told_that_the_gateway_keeps_nothing(bench):
    async def program(job):
        async with clients(job, client_type=OpenAIChatClient) as client:
            planner = agent(client, PLANNER, lookup, default_options={"store": True})
            await planner.run(job.question)

    played = await bench.one(program)
    assert isinstance(played.error, ChatClientException)
    assert "keeps no conversations" in str(played.error)


async def test_outside_a_rollout_nothing_is_said_of_it(bench):
    async with clients(_Job(bench), client_type=OpenAIChatClient) as client:
        await agent(client, PLANNER).run("tea?")
    (answer,) = bench.fake.log
    assert "store" not in answer.body


class _Job:
    api_key = "key"

    def __init__(self, bench):
        self.base_url = bench.fake.base_url

    def model(self, agent):
        return agent

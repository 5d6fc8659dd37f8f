"""Agents of AutoGen's core, which agentchat knows nothing of: who handles the message speaks."""

from dataclasses import dataclass

import openai
from agl_testing._captured import check_identity, check_tokens, triplets
from agl_testing.scenario import ANSWER, ITEM, PLANNER, TOOL_RESULT, WRITER
from autogen_core import (
    AgentId,
    CancellationToken,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    message_handler,
)
from autogen_core.models import UserMessage
from autogen_core.tools import FunctionTool

from agl_core.tracing import agent_scope
from agl_core.types import SpanKind


@dataclass
class Ask:
    text: str


@dataclass
class Note:
    text: str


class Clerk(RoutedAgent):
    """Asks a model of AutoGen's, by way of a tool or not."""

    def __init__(self, model, tool=None):
        super().__init__("A clerk.")
        self._model = model
        self._tool = tool

    @message_handler
    async def on_ask(self, message: Ask, ctx: MessageContext) -> str:
        answer = await self._model.create([UserMessage(content=message.text, source="user")])
        if self._tool is not None:
            await self._tool.run_json({"item": ITEM}, ctx.cancellation_token)
        return answer.content

    @message_handler
    async def on_note(self, message: Note, ctx: MessageContext) -> str:
        return message.text


class Bare(RoutedAgent):
    """Asks with a client that AutoGen knows nothing of."""

    def __init__(self, job, name):
        super().__init__("A bare agent.")
        self._job = job
        self._name = name

    @message_handler
    async def on_ask(self, message: Ask, ctx: MessageContext) -> str:
        job = self._job
        async with openai.AsyncOpenAI(base_url=job.base_url, api_key=job.api_key) as client:
            answer = await client.chat.completions.create(
                model=job.model(self._name), messages=[{"role": "user", "content": message.text}]
            )
        return answer.choices[0].message.content


async def asked(agents, *messages):
    """What each message's agent says, in a runtime that is started here."""
    runtime = SingleThreadedAgentRuntime()
    for name, (kind, make) in agents.items():
        await kind.register(runtime, name, make)
    runtime.start()
    try:
        return [await runtime.send_message(text, AgentId(name, "desk")) for name, text in messages]
    finally:
        await runtime.stop()


def lookup(item: str) -> str:
    return TOOL_RESULT


async def test_the_type_is_the_name_and_a_handling_is_a_run(bench, client, tree):
    tool = FunctionTool(lookup, "Looks up.")

    async def program(job):
        agents = {
            PLANNER: (Clerk, lambda: Clerk(client(job, PLANNER), tool)),
            WRITER: (Clerk, lambda: Clerk(client(job, WRITER))),
        }
        question = Ask(job.question)
        return await asked(agents, (PLANNER, question), (WRITER, question), (WRITER, question))

    played = await bench.one(program)
    assert played.output == [ANSWER] * 3
    check_tokens(played, bench.fake.log)
    check_identity(played)
    assert tree(played.spans) == [
        "agent planner",
        ". llm chat",
        ". tool lookup",
        *["agent writer", ". llm chat"] * 2,
        "reward main",
    ]
    assert len({call.agent_run_id for call in played.calls}) == 3
    assert len(triplets(played, WRITER)) == 2


async def test_a_client_of_any_kind_finds_who_speaks(bench, tree):
    async def program(job):
        return await asked({WRITER: (Bare, lambda: Bare(job, WRITER))}, (WRITER, Ask(job.question)))

    played = await bench.one(program)
    assert played.output == [ANSWER]
    check_identity(played)
    assert tree(played.spans)[:2] == ["agent writer", ". llm chat"]


async def test_who_asks_no_model_adds_no_agent(bench, client):
    async def program(job):
        clerks = {WRITER: (Clerk, lambda: Clerk(client(job, WRITER)))}
        return await asked(clerks, (WRITER, Note("hello")))

    played = await bench.one(program)
    assert played.output == ["hello"]
    assert [span for span in played.spans if span.kind is not SpanKind.REWARD] == []


async def test_a_scope_of_the_users_inside_a_handling_wins(bench, client):
    class InScope(Clerk):
        @message_handler
        async def on_ask(self, message: Ask, ctx: MessageContext) -> str:
            with agent_scope(PLANNER):
                return (await self._model.create([UserMessage(content="x", source="user")])).content

    async def program(job):
        clerks = {WRITER: (InScope, lambda: InScope(client(job, PLANNER)))}
        return await asked(clerks, (WRITER, Ask(job.question)))

    played = await bench.one(program)
    check_identity(played)
    assert [call.agent for call in played.calls] == [PLANNER]


async def test_a_handlers_exception_is_the_agents(bench, client):
    class Failing(Clerk):
        @message_handler
        async def on_ask(self, message: Ask, ctx: MessageContext) -> str:
            await self._model.create([UserMessage(content=message.text, source="user")])
            raise LookupError("no such clerk")

    async def program(job):
        clerks = {WRITER: (Failing, lambda: Failing(client(job, WRITER)))}
        return await asked(clerks, (WRITER, Ask(job.question)))

    played = await bench.one(program)
    assert isinstance(played.error, LookupError)
    (span,) = [span for span in played.spans if span.kind is SpanKind.AGENT]
    assert (span.agent, span.error) == (WRITER, "LookupError: no such clerk")


async def test_tools_outside_a_rollout_are_untouched():
    tool = FunctionTool(lookup, "Looks up.")
    assert await tool.run_json({"item": ITEM}, CancellationToken()) == TOOL_RESULT

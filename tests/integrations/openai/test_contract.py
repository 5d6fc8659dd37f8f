"""The plain client through the whole integration contract, in whatever version is installed."""

import asyncio
import json
from typing import ClassVar

import openai
from agl_openai._integration import OpenAIIntegration
from agl_testing.integration_contract import IntegrationContract
from agl_testing.plugin_contract import PluginContract
from agl_testing.scenario import PLANNER, SYSTEM, TOOL, TOOL_RESULT, WRITER, ScenarioProgram

from agl_core.tracing import agent_scope, emit_tool_call

PRICE = {
    "type": "object",
    "properties": {"item": {"type": "string"}},
    "required": ["item"],
    "additionalProperties": False,
}


def lookup(item):
    return TOOL_RESULT


def _tool(name):
    return {"type": "function", "function": {"name": name, "parameters": PRICE}}


def _opening(text):
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


def _asked(job, agent, messages, **fields):
    return {"model": job.model(agent), "messages": messages, **fields}


def _use(tools, reply):
    """Run the tools that a reply asks for; gives the messages that answer it."""
    messages = [{"role": "assistant", "tool_calls": reply.tool_calls}]
    for call in reply.tool_calls:
        arguments = json.loads(call["function"]["arguments"])
        result = tools[call["function"]["name"]](**arguments)
        emit_tool_call(call["function"]["name"], arguments, result, tool_call_id=call["id"])
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return messages


class Reply:
    """A reply put together from a completion or from its chunks."""

    def __init__(self):
        self.text = ""
        self.tool_calls = []

    @classmethod
    def of(cls, completion):
        reply = cls()
        message = completion.choices[0].message
        reply.text = message.content or ""
        reply.tool_calls = [
            call.model_dump(include={"id", "type", "function"}) for call in message.tool_calls or ()
        ]
        return reply

    def add(self, chunk):
        for choice in chunk.choices:
            self.text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                if piece.index == len(self.tool_calls):
                    call = {"id": piece.id, "type": "function", "function": {}}
                    self.tool_calls.append({**call, "function": {"name": "", "arguments": ""}})
                function = self.tool_calls[piece.index]["function"]
                function["name"] += piece.function.name or ""
                function["arguments"] += piece.function.arguments or ""


class OpenAIProgram(ScenarioProgram):
    """The scenario as a user of the bare client writes it: agents are named by agl's scopes."""

    lacks: ClassVar = {
        "judge": "the client runs no tools, so it cannot tell that one runs: whoever calls a model "
        "inside a tool names the judge with agl.agent_scope",
    }
    hides_usage = "the client has no hooks: a call's span is that of its request"

    def run(self, job):
        with _client(job) as client:
            return self._shop(job, lambda body: Reply.of(client.chat.completions.create(**body)))

    def stream(self, job):
        def ask(body):
            reply = Reply()
            for chunk in client.chat.completions.create(**body, stream=True):
                reply.add(chunk)
            return reply

        with _client(job) as client:
            return self._shop(job, ask)

    async def arun(self, job):
        async with _async_client(job) as client:

            async def ask(body):
                return Reply.of(await client.chat.completions.create(**body))

            return await self._ashop(job, ask)

    async def astream(self, job):
        async with _async_client(job) as client:

            async def ask(body):
                reply = Reply()
                async for chunk in await client.chat.completions.create(**body, stream=True):
                    reply.add(chunk)
                return reply

            return await self._ashop(job, ask)

    def structured(self, job):
        form = {"type": "json_schema", "json_schema": {"name": "price", "schema": PRICE}}
        with _client(job) as client, agent_scope(WRITER):
            body = _asked(job, WRITER, _opening(job.question), response_format=form)
            return json.loads(Reply.of(client.chat.completions.create(**body)).text)

    async def parallel(self, job):
        async with _async_client(job) as client:

            async def ask(agent):
                with agent_scope(agent):
                    body = _asked(job, agent, _opening(job.question))
                    return Reply.of(await client.chat.completions.create(**body)).text

            return await asyncio.gather(ask(PLANNER), ask(WRITER))

    def delegate(self, job):
        with _client(job) as client:

            def ask(body):
                return Reply.of(client.chat.completions.create(**body))

            def ask_writer(item):
                with agent_scope(WRITER):
                    return ask(_asked(job, WRITER, _opening(item))).text

            return self._plan(job, ask, ask_writer)

    def fail(self, job, error):
        def broken(item):
            raise error

        with _client(job) as client:
            return self._plan(
                job, lambda body: Reply.of(client.chat.completions.create(**body)), broken
            )

    def _shop(self, job, ask):
        plan = self._plan(job, ask, lookup)
        with agent_scope(WRITER):
            return ask(_asked(job, WRITER, _opening(plan))).text

    def _plan(self, job, ask, tool):
        messages = _opening(job.question)
        with agent_scope(PLANNER):
            while True:
                reply = ask(_asked(job, PLANNER, messages, tools=[_tool(TOOL)]))
                if not reply.tool_calls:
                    return reply.text
                messages += _use({TOOL: tool}, reply)

    async def _ashop(self, job, ask):
        messages = _opening(job.question)
        with agent_scope(PLANNER):
            reply = await ask(_asked(job, PLANNER, messages, tools=[_tool(TOOL)]))
            while reply.tool_calls:
                messages += _use({TOOL: lookup}, reply)
                reply = await ask(_asked(job, PLANNER, messages, tools=[_tool(TOOL)]))
        with agent_scope(WRITER):
            return (await ask(_asked(job, WRITER, _opening(reply.text)))).text


def _client(job):
    return openai.OpenAI(base_url=job.base_url, api_key=job.api_key)


def _async_client(job):
    return openai.AsyncOpenAI(base_url=job.base_url, api_key=job.api_key)


class TestOpenAI(IntegrationContract):
    package = "agl_openai"
    frameworks = ("openai",)

    def integration(self):
        return OpenAIIntegration()

    def program(self):
        return OpenAIProgram()


class TestPlugin(PluginContract):
    plugin = "agl_openai.plugin"
    frameworks = ("openai",)

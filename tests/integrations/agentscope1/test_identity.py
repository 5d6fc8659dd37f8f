"""Agents and hubs are told apart as objects, whatever they say they equal."""

import asyncio

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.pipeline import MsgHub
from agl_agentscope._usage import SHARED
from agl_testing._captured import check_identity, check_tokens
from agl_testing.scenario import ANSWER, PLANNER, SYSTEM, WRITER

from agl_core.types import SpanKind

from .programs import models, reply


class Unhashable(ReActAgent):
    """As of any class with an ``__eq__`` of its own, such as a dataclass."""

    __hash__ = None

    def __eq__(self, other):
        return self is other


class Equal(ReActAgent):
    """Equals any other agent."""

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return isinstance(other, Equal)


class UnhashableHub(MsgHub):
    __hash__ = None

    def __eq__(self, other):
        return self is other


def of(cls, model, name):
    made = cls(name, SYSTEM, model(name), OpenAIChatFormatter())
    made.set_console_output_enabled(False)
    return made


async def test_an_agent_that_does_not_hash_is_recorded(bench):
    async def program(job):
        async with models(job) as model:
            return await reply(of(Unhashable, model, WRITER), job.question)

    played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    check_tokens(played, bench.fake.log)
    check_identity(played)
    assert [call.agent for call in played.adapt(WRITER).trajectories[WRITER][0].calls] == [WRITER]


async def test_two_agents_that_compare_equal_are_not_one(bench, caplog):
    async def program(job):
        async with models(job) as model:
            both = [of(Equal, model, name) for name in (PLANNER, WRITER)]
            return await asyncio.gather(*(reply(each, job.question) for each in both))

    bench.interleave(2)
    played = await bench.one(program)
    assert (played.output, played.error) == ([ANSWER, ANSWER], None)
    check_identity(played)
    agents = [span for span in played.spans if span.kind is SpanKind.AGENT]
    assert [(span.agent, span.attributes.get(SHARED)) for span in agents] == [
        (PLANNER, None),
        (WRITER, None),
    ]
    assert "at the same time" not in caplog.text


async def test_a_hub_that_does_not_hash_has_its_span(bench):
    async def program(job):
        async with (
            models(job) as model,
            UnhashableHub([of(ReActAgent, model, WRITER)], name="table") as hub,
        ):
            return await reply(hub.participants[0], job.question)

    played = await bench.one(program)
    assert played.error is None
    hubs = [span for span in played.spans if span.name == "hub"]
    assert [(span.status, span.error) for span in hubs] == [("ok", "")]
    check_identity(played)

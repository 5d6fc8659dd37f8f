"""Agents are told apart as objects, whatever they say they equal, and are let go with them."""

import asyncio
import gc
import weakref

import pytest
from agentscope.agent import Agent, InjectionConfig
from agl_agentscope._identity import ByIdentity
from agl_agentscope._integration import AgentScopeIntegration
from agl_agentscope._usage import SHARED
from agl_testing._captured import check_identity, check_tokens
from agl_testing.scenario import ANSWER, PLANNER, SYSTEM, WRITER

from agl_core.tracing import attach
from agl_core.types import SpanKind

from .programs import models, reply


class Unhashable(Agent):
    """As of any class with an ``__eq__`` of its own, such as a dataclass."""

    __hash__ = None

    def __eq__(self, other):
        return self is other


class Equal(Agent):
    """Equals any other agent."""

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return isinstance(other, Equal)


def of(cls, model, name):
    return cls(
        name=name,
        system_prompt=SYSTEM,
        model=model(name),
        injection_config=InjectionConfig(inject_runtime_state=False),
    )


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


async def test_detaching_takes_the_middleware_from_each_agent_that_had_it(unattached):
    attachment, made = attach(integrations=[AgentScopeIntegration()]), []

    async def program(job):
        async with models(job) as model:
            made.extend(of(Equal, model, name) for name in (PLANNER, WRITER))
            return [await reply(each, job.question) for each in made]

    try:
        played = await unattached.one(program)
    finally:
        attachment.detach()
    assert played.error is None
    assert [each._reply_middlewares for each in made] == [[], []]


class _Thing:
    pass


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_what_is_kept_of_an_object_goes_with_it(in_a_cycle):
    kept, thing, other = ByIdentity(), _Thing(), _Thing()
    thing.itself = thing if in_a_cycle else None
    value = weakref.ref(kept.get_or_make(thing, _Thing))
    assert kept.get(thing) is kept.get_or_make(thing, _Thing) is value()
    assert kept.get(other) is None
    assert kept.owners() == [thing]
    del thing
    gc.collect()
    assert value() is None
    assert kept.owners() == []

"""Captured prompts at a real gateway: the rollout's version decides what the model sees."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack

import msgspec
import pytest
from agl_prompts._captured_gateway import CapturedPrompts
from agl_responses._request import read

from agl_core.errors import StoreError
from agl_core.gateway import GatewayServer
from agl_core.interfaces import AttemptRecord, LearnsPrompts
from agl_core.types import LLM, PromptTemplate, Resources, Rollout, RolloutQuery, Task
from tests.core.gateway.conftest import OPTIONS, World

KNOWN = "You are the writer of {item}. Write one sentence."
SENT = KNOWN.replace("{item}", "tea")
ASKED = {"role": "user", "content": "hi"}


class Prompts:
    """The prompts of an agent called writer, published in versions."""

    def __init__(self, world):
        self.world = world

    async def publish(self, template, **fields):
        prompt = PromptTemplate(
            template=template, **{"known": KNOWN, "agents": ("writer*",), **fields}
        )
        items = {"llm": LLM(model="m"), "note": PromptTemplate(template="x"), "p": prompt}
        return (await self.world.store.publish(Resources(items=items))).version


@pytest.fixture
async def world():
    world = World()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.stack)
        await world.start(None, OPTIONS)
        await world.gateway.stop()
        world.gateway = GatewayServer(
            world.store,
            OPTIONS,
            dialects={"POST /responses": read},
            rewriters=[CapturedPrompts],
        )
        await world.route("trained", ("writer*",), trainable=True)
        await world.route("frozen", ("*",), trainable=False)
        await world.gateway.start()
        stack.push_async_callback(world.gateway.stop)
        yield world


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("role", ["system", "developer"])
async def test_each_rollout_sees_the_prompt_of_its_version(world, role, stream):
    prompts = Prompts(world)
    versions = [await prompts.publish(text) for text in (KNOWN, "Sell {item}.", "Praise {item}!")]
    head = {"role": role, "content": SENT}
    seeds = []
    for version, expected in zip(versions, [SENT, "Sell tea.", "Praise tea!"], strict=True):
        attempt = await world.attempt(resources_version=version)
        for agent in ("writer", "planner"):
            await world.ask(attempt, agent, messages=[head, ASKED], stream=stream)
        writer, planner = (answer.body["messages"] for answer in world.server.log[-2:])
        assert writer == [{"role": role, "content": expected}, ASKED]
        assert planner == [head, ASKED]
        calls = await world.calls(attempt)
        assert [call.messages for call in calls] == [writer, planner]
        seeds.append([call.sampling.seed for call in calls])
    assert seeds[0] == seeds[1] == seeds[2]
    assert "prompts_not_found" not in world.gateway.losses.counts


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_have_the_prompt_for_their_instructions(world, stream):
    version = await Prompts(world).publish("Sell {item}.")
    attempt = await world.attempt(resources_version=version)
    body = {"model": "m", "input": "hi", "instructions": f"{SENT}\nDate: today", "stream": stream}
    url = f"{world.gateway.url}/v1/responses"
    async with world.session.post(url, json=body, headers=world.headers(attempt)) as answer:
        assert answer.status == 200
        said = await answer.text()
    assert json.dumps(body["instructions"]) in said
    (call,) = await world.calls(attempt)
    assert call.messages == [{"role": "system", "content": "Sell tea.\nDate: today"}, ASKED]
    assert call.messages == world.server.log[0].body["messages"]


async def test_an_unknown_text_is_sent_as_it_is_and_counted(world):
    version = await Prompts(world).publish("Sell {item}.")
    attempt = await world.attempt(resources_version=version)
    own = [{"role": "system", "content": "From the program's own store."}, ASKED]
    await world.ask(attempt, "writer", messages=own)
    await world.ask(attempt, "planner", messages=own)
    assert [answer.body["messages"] for answer in world.server.log] == [own, own]
    assert world.gateway.losses.counts["prompts_not_found"] == 1


async def test_an_alias_and_a_reserved_name(world):
    version = await Prompts(world).publish("Sell {item}.", agents=("writer",))
    attempt = await world.attempt(resources_version=version)
    head = {"role": "system", "content": SENT}
    body = {"messages": [head, ASKED]}
    for headers in (
        world.headers(attempt, "writer-7", alias="writer"),
        world.headers(attempt, "@writer"),
    ):
        async with world.post(headers, **body) as answer:
            assert answer.status == 200
    heads = [answer.body["messages"][0]["content"] for answer in world.server.log]
    assert heads == ["Sell tea.", SENT]


async def test_without_captured_prompts_calls_are_not_touched(world):
    published = await world.store.publish(
        Resources(items={"note": PromptTemplate(template="x", agents=("writer",))})
    )
    for version in (0, published.version):
        attempt = await world.attempt(resources_version=version)
        assert world.gateway._attempts.find(attempt.id).rewrites == ()


async def test_a_version_is_read_once(world):
    version = await Prompts(world).publish("Sell {item}.")
    read_versions = []
    of_store = world.store.resources

    async def resources(number=None):
        read_versions.append(number)
        return await of_store(number)

    world.store.resources = resources
    for _ in range(3):
        await world.attempt(resources_version=version)
    assert read_versions == [version]


async def test_a_version_that_the_store_lacks_fails_the_opening(world):
    made = CapturedPrompts(world.store)
    assert isinstance(made, LearnsPrompts)
    rollout = Rollout(id="r", task=Task(id="t"), run_id="run", resources_version=9)
    with pytest.raises(StoreError):
        await made.prepare(rollout)


async def test_what_was_learned_is_what_is_replaced(world):
    records = []
    for item in ("tea", "ink"):
        attempt = await world.attempt()
        head = {"role": "system", "content": KNOWN.replace("{item}", item)}
        await world.ask(attempt, "writer", messages=[head, ASKED])
        await world.gateway.seal(attempt.id)
        (rollout,) = await world.store.rollouts(RolloutQuery(ids=(attempt.rollout_id,)))
        spans = await world.store.spans([attempt.rollout_id])
        records.append(AttemptRecord(rollout=rollout, attempt=attempt, spans=spans))
    found = CapturedPrompts(world.store).learn(records, name="p", agents=["writer"])
    assert found.known == KNOWN.replace("item", "value_1")
    tuned = msgspec.structs.replace(found, template="Sell {value_1}.")
    published = await world.store.publish(Resources(items={"p": tuned}))
    attempt = await world.attempt(resources_version=published.version)
    head = {"role": "system", "content": KNOWN.replace("{item}", "old cups")}
    await world.ask(attempt, "writer", messages=[head, ASKED])
    assert world.server.log[-1].body["messages"][0]["content"] == "Sell old cups."

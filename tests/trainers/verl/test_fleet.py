"""Several replicas as one backend: which gets a call, and what becomes of one that died."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from agl_testing.fake_openai import FakeOpenAI, FakeOptions
from agl_verl._fleet import LaterFleet, ReplicaFleet

from agl_core.errors import EngineError, TrainingError
from agl_core.gateway._routing import Route
from agl_core.types import Policy

LIMIT = 20_000


def body(text, *, turns=0, **more):
    """A conversation that begins with `text`; with turns it is longer, and begins the same."""
    messages = [{"role": "user", "content": text}]
    messages += [{"role": "user", "content": f"turn {turn}"} for turn in range(turns)]
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def address(server):
    return server.base_url.removeprefix("http://").removesuffix("/v1")


@pytest.fixture
async def servers():
    async with AsyncExitStack() as stack:
        options = FakeOptions(tokenize=True, detokenize=True, stable=True, max_model_len=LIMIT)
        yield [await stack.enter_async_context(FakeOpenAI(options=options)) for _ in range(3)]


class Reviver:
    """Stands for the engine: says that a replica lives, replaces it, or cannot."""

    def __init__(self):
        self.asked = []
        self.answer = None

    async def __call__(self, index):
        self.asked.append(index)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def revive():
    return Reviver()


@pytest.fixture
async def fleet(servers, revive):
    made = ReplicaFleet([address(each) for each in servers], "m", revive)
    yield made
    await made.close()


async def ask(fleet, content, *, close=True):
    reply = await fleet.chat(content, headers={}, timeout_s=10.0)
    if close:
        async for _ in reply.body():
            pass
        await reply.close()
    return reply


def texts(server):
    return [answer.body["messages"][0]["content"] for answer in server.log]


def owner(servers):
    (index,) = [index for index, server in enumerate(servers) if server.log]
    return index


def long(text):
    """A beginning that fills what chooses the replica."""
    return text + "x" * 4096


async def test_a_conversation_stays_with_its_replica(fleet, servers):
    for turns in range(5):
        await ask(fleet, body(long("once"), turns=turns))
    assert sorted(len(server.log) for server in servers) == [0, 0, 5]


async def test_requests_name_the_model_that_the_replicas_serve(fleet):
    """An engine that serves a checkpoint serves it under another name than the policy's model."""
    assert Route(Policy(name="p", model="base"), fleet).upstream_model == "m"


async def test_conversations_are_spread(fleet, servers):
    for number in range(24):
        await ask(fleet, body(f"task {number}"))
    assert all(server.log for server in servers)


async def test_a_busy_replica_hands_over_to_the_idlest(fleet, servers):
    replies = [await ask(fleet, body("the same"), close=False) for _ in range(11)]
    assert sorted(len(server.log) for server in servers) == [1, 1, 9]
    for reply in replies:
        await reply.close()
    before = len(servers[owner_of_most(servers)].log)
    await ask(fleet, body("the same"))
    assert len(servers[owner_of_most(servers)].log) == before + 1


def owner_of_most(servers):
    return max(range(len(servers)), key=lambda index: len(servers[index].log))


async def test_a_stream_is_under_way_until_it_is_closed(fleet, servers):
    replies = [await ask(fleet, body("s", stream=True), close=False) for _ in range(9)]
    index = owner(servers)
    for reply in replies:
        async for _ in reply.body():
            pass
    await ask(fleet, body("s", stream=True))
    assert len(servers[index].log) == 9
    for reply in replies[:1] * 3:  # closing again frees no other's place
        await reply.close()
    await ask(fleet, body("s", stream=True))
    await ask(fleet, body("s", stream=True))
    assert len(servers[index].log) == 11
    for reply in replies[1:]:
        await reply.close()


async def test_a_call_that_is_cancelled_is_under_way_no_more(fleet, servers):
    waiting, entered = asyncio.Event(), asyncio.Semaphore(0)

    async def before_send(answer, position):
        entered.release()
        await waiting.wait()

    for server in servers:
        server.before_send = before_send
    tasks = [asyncio.create_task(ask(fleet, body("c"))) for _ in range(9)]
    for _ in tasks:
        await entered.acquire()
    index = owner(servers)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for server in servers:
        server.before_send = None
    await ask(fleet, body("c"))
    assert [number for number, server in enumerate(servers) if server.log] == [index]


async def test_a_failure_of_the_model_is_the_gateways_to_see(fleet, servers, revive):
    for server in servers:
        server.fail(1, status=500)
    reply = await ask(fleet, body("x"))
    assert reply.status == 500
    assert revive.asked == []


async def test_a_dead_replica_is_replaced_once(fleet, servers, revive):
    await ask(fleet, body("a"))
    index = owner(servers)
    await servers[index].__aexit__()
    async with FakeOpenAI() as fresh:
        revive.answer = address(fresh)
        reply = await ask(fleet, body("a"))
        assert reply.status == 200
        await ask(fleet, body("a"))
        assert texts(fresh) == ["a", "a"]
    assert revive.asked == [index]


async def test_calls_that_find_it_dead_together_share_the_new_one(fleet, servers, revive):
    """Whoever comes second must not cut off those that the new one serves already."""
    await ask(fleet, body("a"))
    index = owner(servers)
    await servers[index].__aexit__()
    slow, entered = asyncio.Event(), asyncio.Event()

    async def before_send(answer, position):
        entered.set()
        await slow.wait()

    async with FakeOpenAI() as fresh:
        fresh.before_send, revive.answer = before_send, address(fresh)
        first = asyncio.create_task(ask(fleet, body("a")))
        second = asyncio.create_task(ask(fleet, body("a")))
        await entered.wait()
        third = asyncio.create_task(ask(fleet, body("a")))
        slow.set()
        replies = await asyncio.gather(first, second, third)
        assert [reply.status for reply in replies] == [200, 200, 200]
        assert len(fresh.log) == 3


async def test_a_timeout_of_a_replaced_one_cuts_off_nobody(fleet, servers, revive):
    """The engine names the address of one that lives; nothing was replaced since."""
    await ask(fleet, body("a"))
    index = owner(servers)
    revive.answer = address(servers[index])
    slow, entered = asyncio.Event(), asyncio.Event()

    async def before_send(answer, position):
        entered.set()
        await slow.wait()

    servers[index].before_send = before_send
    other = asyncio.create_task(ask(fleet, body("a")))
    await entered.wait()
    with pytest.raises(EngineError, match="did not answer within"):
        await fleet.chat(body("a"), headers={}, timeout_s=0.05)
    slow.set()
    assert (await other).status == 200


async def test_an_error_of_one_that_lives_is_that_error(fleet, servers, revive):
    await ask(fleet, body("a"))
    index = owner(servers)
    await servers[index].__aexit__()
    with pytest.raises(EngineError, match="Cannot reach http://127"):
        await ask(fleet, body("a"))
    assert revive.asked == [index]


@pytest.mark.parametrize("kind", [EngineError, TrainingError])
async def test_one_that_cannot_be_replaced_is_named(fleet, servers, revive, kind):
    await ask(fleet, body("a"))
    index = owner(servers)
    await servers[index].__aexit__()
    revive.answer = kind("verl cannot restart it")
    with pytest.raises(EngineError, match=f"Replica {index} of model 'm': verl cannot") as raised:
        await ask(fleet, body("a"))
    assert raised.value.__cause__ is not None


async def test_prompts_are_counted_and_tokens_told_by_a_replica(fleet, servers):
    counted = await fleet.count_tokens(body("a"))
    assert counted is not None
    assert counted.limit == LIMIT
    await ask(fleet, body("a"))
    sent = servers[owner(servers)].log[0]
    assert counted.tokens == len(sent.prompt_token_ids)
    assert await fleet.detokenize(sent.choices[0].token_ids) == sent.choices[0].text
    assert await fleet.context_length() is None  # they serve another name than the fleet's model


async def test_a_frozen_replica_starts_with_the_first_call(monkeypatch):
    """H2: a policy for whatever agent nobody has named takes no GPU until one asks it."""
    started = []

    class Ready:
        async def chat(self, body, *, headers, timeout_s):
            return body

        async def context_length(self):
            return 77

        async def close(self):
            started.append("closed")

    async def start():
        started.append("started")
        return Ready()

    fleet = LaterFleet(start)
    assert await fleet.context_length() is None
    assert await fleet.detokenize([1]) is None
    await fleet.close()
    assert started == []
    asked = [fleet.chat(b"x", headers={}, timeout_s=1) for _ in range(3)]
    assert await asyncio.gather(*asked) == [b"x"] * 3
    assert started == ["started"]
    assert await fleet.context_length() == 77
    await fleet.close()
    assert started == ["started", "closed"]


async def test_a_frozen_replica_that_does_not_start_is_tried_once():
    """H2: each call fails with the cause."""
    tries = []

    async def start():
        tries.append(None)
        raise TrainingError("no memory")

    fleet = LaterFleet(start)
    for _ in range(2):
        with pytest.raises(EngineError, match="could not be started: no memory"):
            await fleet.chat(b"x", headers={}, timeout_s=1)
    assert len(tries) == 1
    await fleet.close()

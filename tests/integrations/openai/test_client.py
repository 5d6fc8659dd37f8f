"""The client's own ways around the plain call: raw responses, retries, other transports."""

import threading
from contextlib import asynccontextmanager
from importlib.util import find_spec

import openai
import pytest
from agl_openai._integration import OpenAIIntegration
from agl_testing.bench import Bench
from agl_testing.fake_openai import FakeOptions, FakeReply
from agl_testing.scenario import ANSWER, PLANNER, WRITER

from agl_core.errors import ConfigError
from agl_core.tracing import agent_scope, attach, child_environment, emit_reward
from agl_core.types import SpanKind


@pytest.fixture
async def bench():
    async with Bench.open(integrations=[OpenAIIntegration()]) as bench:
        yield bench


def ask(job, client, **fields):
    messages = [{"role": "user", "content": job.question}]
    with agent_scope(WRITER):
        return client.create(model=job.model(WRITER), messages=messages, **fields)


async def aask(job, client, **fields):
    messages = [{"role": "user", "content": job.question}]
    with agent_scope(WRITER):
        return await client.create(model=job.model(WRITER), messages=messages, **fields)


def client_of(job, **options):
    return openai.OpenAI(base_url=job.base_url, api_key=job.api_key, **options)


@asynccontextmanager
async def async_client_of(job, **options):
    async with openai.AsyncOpenAI(base_url=job.base_url, api_key=job.api_key, **options) as client:
        yield client


def text_of(chunks):
    return "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)


def raw(job):
    with client_of(job) as client:
        answer = ask(job, client.chat.completions.with_raw_response)
        assert answer.headers["content-type"].startswith("application/json")
        return answer.parse().choices[0].message.content


def raw_stream(job):
    with client_of(job) as client:
        answer = ask(job, client.chat.completions.with_raw_response, stream=True)
        assert answer.headers["content-type"].startswith("text/event-stream")
        return text_of(list(answer.parse()))


async def araw(job):
    async with async_client_of(job) as client:
        answer = await aask(job, client.chat.completions.with_raw_response)
        return answer.parse().choices[0].message.content


async def araw_stream(job):
    async with async_client_of(job) as client:
        answer = await aask(job, client.chat.completions.with_raw_response, stream=True)
        return text_of([chunk async for chunk in answer.parse()])


async def over_aiohttp(job):
    transport = openai.DefaultAioHttpClient()
    async with async_client_of(job, http_client=transport) as client:
        answer = await aask(job, client.chat.completions)
        return answer.choices[0].message.content


async def over_aiohttp_streamed(job):
    transport = openai.DefaultAioHttpClient()
    async with async_client_of(job, http_client=transport) as client:
        stream = await aask(job, client.chat.completions, stream=True)
        return text_of([chunk async for chunk in stream])


def high_level_stream(job):
    messages = [{"role": "user", "content": job.question}]
    with client_of(job) as client, agent_scope(WRITER):
        asked = {"model": job.model(WRITER), "messages": messages}
        with client.chat.completions.stream(**asked) as events:
            text = "".join(event.delta for event in events if event.type == "content.delta")
            assert events.get_final_completion().choices[0].message.content == text
        return text


async def ahigh_level_stream(job):
    messages = [{"role": "user", "content": job.question}]
    async with async_client_of(job) as client:
        with agent_scope(WRITER):
            asked = {"model": job.model(WRITER), "messages": messages}
            async with client.chat.completions.stream(**asked) as events:
                completion = await events.get_final_completion()
        return completion.choices[0].message.content


# openai 3 brings this transport itself, openai 2 takes it from a package of its own.
needs_transport = pytest.mark.skipif(
    openai.__version__.startswith("2.") and find_spec("httpx_aiohttp") is None,
    reason="openai 2 needs its extra 'aiohttp' for this transport",
)


@pytest.mark.parametrize(
    "action",
    [
        raw,
        raw_stream,
        araw,
        araw_stream,
        high_level_stream,
        ahigh_level_stream,
        pytest.param(over_aiohttp, marks=needs_transport),
        pytest.param(over_aiohttp_streamed, marks=needs_transport),
    ],
)
async def test_every_way_of_calling_is_captured(bench, action):
    played = await bench.one(action)
    assert (played.output, played.error) == (ANSWER, None)
    (call,), (answer,) = played.calls, bench.fake.log
    assert call.agent == WRITER
    assert call.choices[0].token_ids.tolist() == answer.choices[0].token_ids
    assert call.messages == answer.body["messages"]
    (span,) = [span for span in played.spans if span.kind is SpanKind.LLM]
    assert (span.call_id, span.agent, span.status) == (call.id, WRITER, "ok")
    assert played.adapt(WRITER).calls == 1


async def test_a_retried_request_is_one_call(bench):
    bench.fake.fail(1)

    def action(job):
        with client_of(job, max_retries=2) as client:
            return ask(job, client.chat.completions).choices[0].message.content

    played = await bench.one(action)
    assert played.output == ANSWER
    assert len([span for span in played.spans if span.kind is SpanKind.LLM]) == 1
    assert played.adapt(WRITER).calls == 1


async def test_a_judge_is_named_by_a_scope_and_never_trained(bench):
    def action(job):
        with client_of(job) as client, agent_scope(WRITER):
            ask(job, client.chat.completions)
            with agent_scope("judge", trainable=False):
                messages = [{"role": "user", "content": "good?"}]
                client.chat.completions.create(model=job.model("judge"), messages=messages)

    played = await bench.one(action)
    assert [(call.agent, call.trainable) for call in played.calls] == [
        (WRITER, True),
        ("judge", False),
    ]
    assert played.adapt("*").trajectories.keys() == {WRITER}


def _candidates(bench, count):
    """Let the model say something else in each choice."""
    texts = iter(range(count * 10))
    bench.fake.script = lambda _: FakeReply(text=f"candidate {next(texts)}")


@pytest.mark.parametrize("stream", [False, True])
async def test_each_of_several_choices_is_recorded_and_the_named_one_is_trained(bench, stream):
    _candidates(bench, 3)

    def action(job):
        with client_of(job) as client:
            answer = ask(job, client.chat.completions.with_raw_response, n=3, stream=stream)
            if stream:
                for _ in answer.parse():
                    pass
            emit_reward(0.25, call=answer.headers["x-agl-call"], choice=1)

    played = await bench.one(action)
    (call,), (answer,) = played.calls, bench.fake.log
    assert [choice.index for choice in call.choices] == [0, 1, 2]
    for choice, truth in zip(call.choices, answer.choices, strict=True):
        assert (choice.text, choice.token_ids.tolist()) == (truth.text, truth.token_ids)
        assert choice.logprobs.tolist() == truth.logprobs
    adapted = played.adapt(WRITER)
    rewards = {triplet.choice: triplet.reward for triplet in _triplets(adapted)}
    assert rewards == {0: None, 1: 0.25, 2: None}
    assert adapted.losses.counts == {"choices_without_reward": 2}


async def test_the_choice_that_the_conversation_went_on_from_is_context():
    async with Bench.open(FakeOptions(stable=True)) as bench:
        attachment = attach(integrations=[OpenAIIntegration()])
        _candidates(bench, 2)

        def action(job):
            with client_of(job) as client, agent_scope(WRITER):
                asked = {"model": job.model(WRITER)}
                messages = [{"role": "user", "content": job.question}]
                first = client.chat.completions.create(**asked, messages=messages, n=2)
                chosen = first.choices[1].message
                messages += [{"role": "assistant", "content": chosen.content}]
                messages += [{"role": "user", "content": "shorter"}]
                client.chat.completions.create(**asked, messages=messages)

        try:
            played = await bench.one(action)
        finally:
            attachment.detach()
    triplets = _triplets(played.adapt(WRITER))
    first, second = played.calls
    continued = {(each.call_id, each.choice): each.continued for each in triplets}
    assert continued == {(first.id, 0): False, (first.id, 1): True, (second.id, 0): True}


def _triplets(adapted):
    """One of each choice: a choice that several paths go through stands in each."""
    paths = [path for group in adapted.trajectories.values() for path in group]
    return {(t.call_id, t.choice): t for path in paths for t in path.calls}.values()


async def test_threads_of_ones_own_say_who_they_are_in_their_url(bench):
    def speak(agent, url, job, said):
        with openai.OpenAI(base_url=url, api_key=job.api_key) as client:
            messages = [{"role": "user", "content": job.question}]
            answer = client.chat.completions.create(model=job.model(agent), messages=messages)
            said[agent] = answer.choices[0].message.content
            client.responses.create(model=job.model(agent), input=job.question)

    def action(job):
        said = {}
        urls = {
            agent: child_environment(agent=agent)["OPENAI_BASE_URL"] for agent in (PLANNER, WRITER)
        }
        threads = [
            threading.Thread(target=speak, args=(agent, url, job, said))
            for agent, url in urls.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return said

    bench.interleave(2)
    played = await bench.one(action)
    assert played.output == {PLANNER: ANSWER, WRITER: ANSWER}
    for call in played.calls:
        assert call.model.startswith(f"{call.agent}@")
    adapted = played.adapt(PLANNER, WRITER)
    assert adapted.seen == {PLANNER, WRITER}
    assert adapted.calls == len(played.calls) == 4


def test_a_client_that_sends_in_an_unknown_way_is_refused(monkeypatch):
    class Elsewhere:
        __module__ = "carrier_pigeon._client"

        def send(self, request):
            return request

    monkeypatch.setattr(openai, "DefaultAsyncHttpxClient", Elsewhere)
    with pytest.raises(ConfigError, match=r"DefaultAsyncHttpxClient sends through carrier_pigeon"):
        OpenAIIntegration().attach()

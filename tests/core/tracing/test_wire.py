from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import httpx
import httpx2
import pytest

from agl_core import semconv
from agl_core.tracing import _wire as wire
from agl_core.tracing import (
    agent_scope,
    attach,
    current_scope,
    enter,
    operation,
)
from agl_core.types import LLM, Scope, SpanKind
from tests.core.passing import pass_time
from tests.core.tracing.scopes import close_scope, open_scope

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
LIBRARIES = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
pytestmark = pytest.mark.usefixtures("attached")


class Identity:
    """An integration that only answers who speaks."""

    def __init__(self, answer, name="toy"):
        self.name = name
        self.answer = answer

    def attach(self):
        pass

    def detach(self):
        pass

    def identity(self):
        return self.answer()


def chat_url(server):
    return f"{server.base_url}/chat/completions"


def post(library, server, **options):
    with library.Client(timeout=60) as client:
        return client.post(chat_url(server), json=BODY, **options)


def llm_spans(context):
    return [span for span in context.recorder.snapshot() if span.kind is SpanKind.LLM]


def capture_errors(context):
    spans = context.recorder.snapshot()
    return [span.error for span in spans if span.name == semconv.AGL_CAPTURE_ERROR]


@LIBRARIES
def test_a_request_carries_the_identity_of_its_scope(library, server, make_context):
    context = make_context("ä/1")
    with enter(context), agent_scope("writer é @", trainable=False) as scope:
        post(library, server)
    assert server.identities("rollout") == ["rollout_ä/1"]
    assert server.identities("attempt") == ["attempt_ä/1"]
    assert server.identities("agent") == ["writer é @"]
    assert server.identities("agent-run") == [scope.span_id]
    assert server.identities("trainable") == ["0"]
    (span,) = llm_spans(context)
    assert server.identities("call") == [span.call_id]
    assert (span.agent, span.parent_id, span.status) == ("writer é @", scope.span_id, "ok")
    assert server.log[0][1]["x-agl-agent"].isascii()


@LIBRARIES
def test_nothing_is_added_outside_a_rollout_or_on_the_way_elsewhere(library, server, make_context):
    post(library, server)
    elsewhere = make_context(origins=frozenset({"other.example:443"}))
    with enter(elsewhere):
        response = post(library, server, timeout=7)
    assert response.request.extensions["timeout"]["read"] == 7
    assert elsewhere.recorder.snapshot() == []
    for _, headers, _ in server.log:
        assert not [name for name in headers if name.startswith("x-agl-")]


@LIBRARIES
def test_without_an_agent_no_agent_header_is_sent(library, server, make_context):
    context = make_context()
    with enter(context), operation("step"):
        post(library, server)
    assert server.identities("agent") == [None]
    assert server.identities("agent-run") == [None]
    assert server.identities("trainable") == [None]
    assert llm_spans(context)[0].agent is None


def test_an_agent_that_the_program_names_in_the_request_is_kept(server, make_context):
    context = make_context()
    url = f"{server.url}/r/rollout_1/a/attempt_1/agent/the%20writer/v1/chat/completions"
    with enter(context), httpx.Client(timeout=60) as client:
        client.post(chat_url(server), json=BODY, headers={"x-agl-agent": "plan%20ner"})
        client.post(url, json=BODY)
    assert [span.agent for span in llm_spans(context)] == ["plan ner", "the writer"]
    assert server.identities("agent") == ["plan ner", None]


def test_only_generation_requests_get_a_call(server, make_context):
    context = make_context()
    with enter(context), agent_scope("writer"), httpx.Client(timeout=60) as client:
        client.get(f"{server.base_url}/models")
        client.post(f"{server.base_url}/tokenize", json={})
    assert server.identities("agent") == ["writer", "writer"]
    assert server.identities("call") == [None, None]
    assert llm_spans(context) == []


@LIBRARIES
def test_a_call_scope_owns_the_id_and_the_span(library, server, make_context):
    context = make_context()
    with enter(context), agent_scope("writer"):
        span_id = context.recorder.start(SpanKind.LLM, "model")
        scope = open_scope("call", span_id=span_id)
        with operation("transport"):
            post(library, server)
        close_scope(scope)
        post(library, server)
    first, second = llm_spans(context)
    assert server.identities("call") == [first.call_id, second.call_id]
    assert (first.id, first.call_id) == (span_id, scope.call_id)
    assert capture_errors(context) == []


def test_an_agent_inside_a_call_speaks_for_itself(server, make_context):
    context = make_context()
    with enter(context):
        scope = open_scope("call", span_id="c", agent="outer")
        with agent_scope("inner"):
            post(httpx, server)
        close_scope(scope)
    assert scope.call_id is None
    assert server.identities("agent") == ["inner"]


def test_what_runs_inside_a_tool_belongs_to_no_agent(server, make_context):
    context = make_context()
    with enter(context), agent_scope("writer"):
        tool = open_scope("tool", span_id=context.recorder.start(SpanKind.TOOL, "search"))
        post(httpx, server)
        close_scope(tool)
        post(httpx, server)
    assert server.identities("agent") == [None, "writer"]
    assert [span.agent for span in llm_spans(context)] == [None, "writer"]


def test_a_second_request_in_one_call_is_a_capture_error_and_still_goes_out(server, make_context):
    context = make_context()
    with enter(context):
        scope = open_scope("call", span_id=context.recorder.start(SpanKind.LLM, "model"))
        assert post(httpx, server).status_code == 200
        assert post(httpx, server).status_code == 200
        other = {**BODY, "temperature": 1}
        with httpx.Client(timeout=60) as client:
            client.post(chat_url(server), json=other, headers={"x-stainless-retry-count": "1"})
        close_scope(scope)
    assert len(set(server.identities("call"))) == 3
    assert len(capture_errors(context)) == 2


def test_a_client_of_any_key_sends_that_of_the_attempt_it_is_used_in(server, make_context):
    """F2: the process has one key for all attempts, and the gateway one for each."""
    sent = {"authorization": "Bearer of the run"}
    with httpx.Client(timeout=60, headers=sent) as client:
        for name in ("1", "2"):
            context = make_context(name)
            context.llm = LLM(model="m", base_url=server.base_url, api_key=f"key {name}")
            with enter(context):
                client.post(chat_url(server), json=BODY)
        client.post(chat_url(server), json=BODY)
    keys = [headers["authorization"] for _, headers, _ in server.log]
    assert keys == ["Bearer key 1", "Bearer key 2", "Bearer of the run"]


@pytest.mark.parametrize("call_scope", [True, False])
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_an_sdk_retry_reuses_the_id_and_the_last_try_counts(
    server, make_context, call_scope, asynchronous
):
    openai = pytest.importorskip("openai")
    server.failures = 2
    context = make_context()
    options = {"base_url": server.base_url, "api_key": "key"}
    with enter(context), agent_scope("writer"):
        if call_scope:
            open_scope("call", span_id=context.recorder.start(SpanKind.LLM, "model"))
        if asynchronous:
            async with openai.AsyncOpenAI(**options) as client:
                await client.chat.completions.create(**BODY)
        else:
            with openai.OpenAI(**options) as client:
                client.chat.completions.create(**BODY)
    assert [headers["x-stainless-retry-count"] for _, headers, _ in server.log] == ["0", "1", "2"]
    assert len(set(server.identities("call"))) == 1
    (span,) = llm_spans(context)
    assert span.call_id == server.identities("call")[0]
    assert capture_errors(context) == []
    if not call_scope:
        assert (span.status, span.error) == ("ok", "")


@LIBRARIES
@pytest.mark.parametrize("body", [BODY, {**BODY, "model": "other"}], ids=["same", "rerouted"])
def test_what_failed_and_is_sent_again_is_one_call(library, server, make_context, body):
    """As routers do above the SDK, perhaps to another model."""
    server.failures = 2
    context = make_context()
    with enter(context):
        scope = open_scope("call", span_id=context.recorder.start(SpanKind.LLM, "model"))
        statuses = [post(library, server).status_code for _ in range(2)]
        with library.Client(timeout=60) as client:
            statuses.append(client.post(chat_url(server), json=body).status_code)
        assert capture_errors(context) == []
        assert post(library, server).status_code == 200
        close_scope(scope)
    assert statuses == [500, 500, 200]
    first, *more, last = server.identities("call")
    assert more == [first, first]
    assert last != first
    assert len(capture_errors(context)) == 1


@LIBRARIES
async def test_what_never_arrived_and_is_sent_again_is_one_call(library, server, make_context):
    context = make_context()
    with enter(context):
        scope = open_scope("call", span_id=context.recorder.start(SpanKind.LLM, "model"))
        async with library.AsyncClient(timeout=60) as client:
            server.hold = threading.Event()
            awaits_answer = asyncio.Event()

            async def follow(event, _):
                if event == "http11.receive_response_headers.started":
                    awaits_answer.set()

            request = client.post(chat_url(server), json=BODY, extensions={"trace": follow})
            asking = asyncio.create_task(request)
            await awaits_answer.wait()
            pass_time(60)
            with pytest.raises(library.TimeoutException):
                await asking
            server.hold.set()
            server.hold = None
            assert (await client.post(chat_url(server), json=BODY)).status_code == 200
        close_scope(scope)
    assert len(server.identities("call")) == 2
    assert len(set(server.identities("call"))) == 1
    assert capture_errors(context) == []


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_raw_response_clients_get_what_they_get_without_us(
    server, make_context, asynchronous
):
    openai = pytest.importorskip("openai")
    context = make_context()
    options = {"base_url": server.base_url, "api_key": "key"}
    with enter(context):
        if asynchronous:
            async with openai.AsyncOpenAI(**options) as client:
                raw = await client.chat.completions.with_raw_response.create(**BODY, stream=True)
                chunks = [chunk async for chunk in raw.parse()]
                parsed = (await client.chat.completions.with_raw_response.create(**BODY)).parse()
        else:
            with openai.OpenAI(**options) as client:
                raw = client.chat.completions.with_raw_response.create(**BODY, stream=True)
                chunks = list(raw.parse())
                parsed = client.chat.completions.with_raw_response.create(**BODY).parse()
    assert raw.headers["content-type"] == "text/event-stream"
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["hi"] * 3
    assert parsed.choices[0].message.content == "hi"
    assert [span.status for span in llm_spans(context)] == ["ok", "ok"]


def test_openai_3_with_a_legacy_client_is_seen_too(server, make_context):
    openai = pytest.importorskip("openai")
    context = make_context()
    with enter(context), httpx.Client(timeout=60) as legacy:
        client = openai.OpenAI(base_url=server.base_url, api_key="k", http_client=legacy)
        client.chat.completions.create(**BODY)
    assert len(llm_spans(context)) == 1


@LIBRARIES
def test_the_span_of_a_stream_ends_when_the_stream_does(library, server, make_context):
    context = make_context()
    with enter(context), library.Client(timeout=60) as client:
        body = {**BODY, "stream": True}
        with client.stream("POST", chat_url(server), json=body) as response:
            assert llm_spans(context)[0].end_ns == 0
            data = response.read()
        assert data.endswith(b"[DONE]\n\n")
        assert llm_spans(context)[0].status == "ok"
        with client.stream("POST", chat_url(server), json=body):
            assert llm_spans(context)[1].end_ns == 0
        assert llm_spans(context)[1].status == "ok"


@LIBRARIES
async def test_the_span_of_an_async_stream_ends_when_the_stream_does(library, server, make_context):
    context = make_context()
    with enter(context):
        async with library.AsyncClient(timeout=60) as client:
            body = {**BODY, "stream": True}
            async with client.stream("POST", chat_url(server), json=body) as response:
                assert llm_spans(context)[0].end_ns == 0
                lines = [line async for line in response.aiter_lines()]
            assert "data: [DONE]" in lines
            assert llm_spans(context)[0].status == "ok"
            async with client.stream("POST", chat_url(server), json=body) as response:
                async for _ in response.aiter_bytes():
                    break
            assert llm_spans(context)[1].status == "ok"


class Breaks(httpx.SyncByteStream):
    def __iter__(self):
        yield b"data: "
        raise httpx.ReadError("cut off")


class AsyncBreaks(httpx.AsyncByteStream):
    async def __aiter__(self):
        yield b"data: "
        raise httpx.ReadError("cut off")


def test_a_stream_that_breaks_ends_its_span_as_an_error(server, make_context):
    context = make_context()
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Breaks()))
    with (
        enter(context),
        httpx.Client(transport=transport) as client,
        client.stream("POST", chat_url(server), json=BODY) as response,
        pytest.raises(httpx.ReadError, match="cut off"),
    ):
        response.read()
    assert [span.error for span in llm_spans(context)] == ["ReadError: cut off"]


async def test_an_async_stream_that_breaks_ends_its_span_as_an_error(server, make_context):
    context = make_context()
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=AsyncBreaks()))
    with enter(context):
        async with (
            httpx.AsyncClient(transport=transport) as client,
            client.stream("POST", chat_url(server), json=BODY) as response,
        ):
            with pytest.raises(httpx.ReadError, match="cut off"):
                await response.aread()
    assert [span.error for span in llm_spans(context)] == ["ReadError: cut off"]


def refuse(request):
    raise httpx.ConnectError("refused", request=request)


def test_failures_pass_unchanged_and_end_the_span_as_an_error(server, make_context):
    context = make_context()
    with enter(context), httpx.Client(transport=httpx.MockTransport(refuse)) as client:
        with pytest.raises(httpx.ConnectError, match="refused"):
            client.post(chat_url(server), json=BODY)
        server.failures = 1
        assert post(httpx, server).status_code == 500
    assert [span.error for span in llm_spans(context)] == ["ConnectError: refused", "HTTP 500"]


async def test_async_failures_pass_unchanged_and_end_the_span_as_an_error(server, make_context):
    context = make_context()
    with enter(context):
        async with httpx.AsyncClient(transport=httpx.MockTransport(refuse)) as client:
            with pytest.raises(httpx.ConnectError, match="refused"):
                await client.post(chat_url(server), json=BODY)
    assert [span.error for span in llm_spans(context)] == ["ConnectError: refused"]


async def test_a_cancelled_request_ends_its_span_as_an_error(server, make_context):
    server.hold = threading.Event()
    context = make_context()

    async def call():
        async with httpx.AsyncClient(timeout=60) as client:
            await client.post(chat_url(server), json=BODY)

    with enter(context):
        task = asyncio.create_task(call())
        while not server.log:  # noqa: ASYNC110  the server is another thread
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert llm_spans(context)[0].error == "CancelledError"


async def test_what_is_sent_after_a_cancelled_call_is_no_other_try_of_it(server, make_context):
    context = make_context()
    with enter(context), agent_scope("writer") as writer:
        # Nobody tells that this call has ended, as in frameworks that do not when it is cancelled.
        span_id = context.recorder.start(SpanKind.LLM, "model")
        call = open_scope("call", span_id=span_id)
        server.hold = threading.Event()
        async with httpx.AsyncClient(timeout=60) as client:
            request = asyncio.ensure_future(client.post(chat_url(server), json=BODY))
            while not server.log:  # noqa: ASYNC110  the server is another thread
                await asyncio.sleep(0.001)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            server.hold.set()
            assert current_scope() is writer
            await client.post(chat_url(server), json=BODY)
    cancelled, sent = llm_spans(context)
    assert (cancelled.id, cancelled.call_id) == (span_id, call.call_id)
    assert (cancelled.status, cancelled.error) == ("error", "CancelledError")
    assert (sent.agent, sent.status) == ("writer", "ok")
    assert server.identities("call") == [cancelled.call_id, sent.call_id]
    assert capture_errors(context) == []


@LIBRARIES
def test_the_deadline_lowers_every_timeout_and_raises_none(library, server, make_context):
    with enter(make_context(seconds=50.0)):
        timeout = library.Timeout(None, connect=2.0, read=60.0)
        sent = post(library, server, timeout=timeout).request.extensions["timeout"]
        assert sent["connect"] == 2.0
        assert all(40.0 < sent[phase] <= 50.0 for phase in ("read", "write", "pool"))
        bare = library.Request("POST", chat_url(server), json=BODY)
        with library.Client(timeout=3.0) as client:
            client.send(bare)
        assert bare.extensions["timeout"]["read"] == 3.0


@LIBRARIES
def test_past_the_deadline_a_request_times_out_at_once(library, server, make_context):
    server.hold = threading.Event()
    with enter(make_context(seconds=-1.0)), pytest.raises(library.TimeoutException) as caught:
        post(library, server)
    assert caught.value.request.extensions["timeout"]["read"] < 0.1


def test_a_streamed_request_body_is_sent_and_never_taken_for_a_retry(server, make_context):
    context = make_context()
    data = json.dumps(BODY).encode()
    with enter(context), httpx.Client(timeout=60) as client:
        for count in ("0", "1"):
            headers = {"content-length": str(len(data)), "x-stainless-retry-count": count}
            client.post(chat_url(server), content=iter([data]), headers=headers)
    assert len(set(server.identities("call"))) == 2
    assert server.log[0][2] == BODY


def test_the_first_integration_with_an_opinion_says_who_speaks(server, make_context):
    context = make_context()
    silent = Identity(lambda: None, "silent")
    scope = Scope(kind="agent", span_id="s", agent="from hook", agent_run_id="run")
    attachment = attach(integrations=[silent, Identity(lambda: scope)])
    with enter(context), agent_scope("from scope"):
        post(httpx, server)
    attachment.detach()
    with enter(context), agent_scope("from scope"):
        post(httpx, server)
    assert server.identities("agent") == ["from hook", "from scope"]
    assert llm_spans(context)[0].parent_id == "s"


def test_an_identity_that_raises_is_a_capture_error_and_the_request_goes_out(server, make_context):
    context = make_context()

    def broken():
        raise RuntimeError("no context")

    attachment = attach(integrations=[Identity(broken)])
    with enter(context), agent_scope("writer"):
        assert post(httpx, server).status_code == 200
    attachment.detach()
    assert server.identities("agent") == ["writer"]
    assert "integration 'toy' raised RuntimeError: no context" in capture_errors(context)[0]


def test_an_identity_that_cannot_be_sent_is_a_capture_error(
    server, make_context, caplog, monkeypatch
):
    def fail(value):
        raise ValueError("no header")

    monkeypatch.setattr(wire, "_encode", fail)
    context = make_context()
    with enter(context), agent_scope("writer"):
        assert post(httpx, server).status_code == 200
    assert "went out without its identity" in capture_errors(context)[0]
    assert "went out without its identity" in caplog.text


async def test_fifty_rollouts_in_threads_and_tasks_never_mix(server, make_context):
    contexts = [make_context(str(number)) for number in range(50)]
    barrier = threading.Barrier(25)

    def body(number):
        return {"model": "m", "messages": [], "user": str(number)}

    def in_thread(number):
        with (
            enter(contexts[number]),
            agent_scope(f"agent {number}"),
            httpx.Client(timeout=60) as client,
        ):
            barrier.wait()
            for _ in range(2):
                client.post(chat_url(server), json=body(number))
            inner = copy_context()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(inner.run, client.post, chat_url(server), json=body(number)).result()

    async def in_task(number, client):
        with enter(contexts[number]), agent_scope(f"agent {number}"):
            sends = [client.post(chat_url(server), json=body(number)) for _ in range(2)]
            await asyncio.gather(*sends)
            await asyncio.create_task(client.post(chat_url(server), json=body(number)))

    threads = [threading.Thread(target=in_thread, args=(number,)) for number in range(25)]
    for thread in threads:
        thread.start()
    async with httpx2.AsyncClient(timeout=60) as client:
        await asyncio.gather(*(in_task(number, client) for number in range(25, 50)))
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    assert len(server.log) == 150
    for (_, _, sent), rollout, agent in zip(
        server.log, server.identities("rollout"), server.identities("agent"), strict=True
    ):
        assert rollout == f"rollout_{sent['user']}"
        assert agent == f"agent {sent['user']}"
    for context in contexts:
        agent, *calls = context.recorder.drain()
        assert [span.parent_id for span in calls] == [agent.id] * 3
        assert len({span.call_id for span in calls}) == 3
    assert len(set(server.identities("call"))) == 150

"""Model requests of an attempt to another address than the gateway's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings

import httpx
import httpx2
import pytest
from msgspec.structs import replace

from agl_core import semconv
from agl_core.errors import CaptureError
from agl_core.tracing import Strays, agent_scope, counting_strays, enter, origins_of
from agl_core.types import SpanKind
from agl_core.types.rollout import CAPTURE
from tests.core.tracing.scopes import close_scope, open_scope

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
LIBRARIES = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
TRAINED = {"agents": ["writer", "judge"], "policies": [["judge", False], ["*", True]]}
pytestmark = pytest.mark.usefixtures("attached")


@pytest.fixture
def make(make_context):
    """An attempt of a run that trains `writer`; `judge` is chosen too, but its policy is frozen."""

    def make(**capture):
        context = make_context()
        rollout = replace(context.rollout, metadata={CAPTURE: {**TRAINED, **capture}})
        context.rollout = rollout
        return context

    return make


@pytest.fixture
def other(make_server):
    return make_server()


def lost(context):
    return context.recorder.losses.counts


def llm_spans(context):
    return [span for span in context.recorder.snapshot() if span.kind is SpanKind.LLM]


def host(server):
    return server.url.removeprefix("http://")


@LIBRARIES
def test_a_trained_agent_whose_client_is_older_reaches_the_gateway(library, server, other, make):
    """C2: the plain client of a trained agent calls another address."""
    context = make()
    url = f"{other.url}/openai/deployments/x/chat/completions?api-version=1"
    keys = {"authorization": "Bearer mine", "api-key": "mine", "cookie": "mine=1"}
    with library.Client(timeout=60, headers=keys) as client, enter(context), agent_scope("writer"):
        answer = client.post(url, json=BODY)
    assert answer.status_code == 200
    assert other.log == []
    ((path, headers, body),) = server.log
    assert (path, body) == ("/v1/chat/completions", BODY)
    assert headers["host"] == host(server)
    assert headers["authorization"] == "Bearer key"
    assert not {"api-key", "cookie"} & headers.keys()
    (span,) = llm_spans(context)
    assert server.identities("agent") == ["writer"]
    assert server.identities("call") == [span.call_id]
    assert (span.agent, span.status) == ("writer", "ok")
    assert lost(context) == {}


@LIBRARIES
async def test_an_async_stream_is_rerouted_too(library, server, other, make):
    """C2: streamed and async."""
    context = make()
    async with library.AsyncClient(timeout=60) as client:
        with enter(context), agent_scope("writer"):
            async with client.stream(
                "POST", f"{other.base_url}/responses", json={**BODY, "stream": True}
            ) as answer:
                lines = [line async for line in answer.aiter_lines()]
    assert "data: [DONE]" in lines
    assert other.log == []
    assert [path for path, _, _ in server.log] == ["/v1/responses"]
    assert [span.status for span in llm_spans(context)] == ["ok"]


def test_a_call_scope_of_a_framework_is_joined_after_rerouting(server, other, make):
    """G3: a framework's model that was made at import."""
    context = make()
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=other.base_url, api_key="mine", max_retries=2)
    with client, enter(context), agent_scope("writer"):
        span_id = context.recorder.start(SpanKind.LLM, "model")
        scope = open_scope("call", span_id=span_id)
        server.failures = 1
        client.chat.completions.create(**BODY)
        close_scope(scope)
    assert other.log == []
    first, second = server.identities("call")
    assert first == second == llm_spans(context)[0].call_id


@LIBRARIES
def test_a_client_with_a_proxy_and_a_key_of_its_own_reaches_the_gateway(library, server, make):
    """G3: a client that was made where a proxy was set."""
    context = make()
    client = library.Client(proxy="http://127.0.0.1:9", auth=("me", "secret"), timeout=60)
    with client, enter(context), agent_scope("writer"):
        answer = client.post("https://api.example.invalid/v1/chat/completions", json=BODY)
    assert answer.status_code == 200
    assert server.log[0][1]["authorization"] == "Bearer key"


def test_one_client_serves_many_loops(server, other, make):
    """D2: an AsyncOpenAI made at module level outlives the loop of its first run."""
    openai = pytest.importorskip("openai")
    client = openai.AsyncOpenAI(base_url=other.base_url, api_key="mine", max_retries=0)

    async def ask():
        with enter(make()), agent_scope("writer"):
            await asyncio.gather(*(client.chat.completions.create(**BODY) for _ in range(3)))

    for _ in range(3):
        asyncio.run(ask())
    assert (len(server.log), other.log) == (9, [])


@LIBRARIES
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/completions"])
def test_a_dialect_that_is_not_served_is_refused_before_it_leaves(library, path, other, make):
    """G3: a trained agent's request reaches the gateway or nothing."""
    context = make()
    refused = pytest.raises(CaptureError, match=f"'writer' is trained.*{path}.*dialect")
    with library.Client() as client, enter(context), agent_scope("writer"), refused:
        client.post(f"{other.url}{path}", json=BODY)
    assert other.log == []
    assert lost(context) == {f"refused_elsewhere_by_writer_to_{host(other)}": 1}
    assert llm_spans(context) == []


@LIBRARIES
async def test_an_async_refusal(library, other, make):
    context = make()
    async with library.AsyncClient() as client:
        with enter(context), agent_scope("writer"), pytest.raises(CaptureError, match="dialect"):
            await client.post(f"{other.url}/v1/messages", json=BODY)
    assert other.log == []


@LIBRARIES
@pytest.mark.parametrize("agent", ["planner", "judge", "@selector", None])
def test_others_send_where_they_like_and_are_counted(library, agent, server, other, make):
    """C2: requests of agents that are not trained, and those without an agent."""
    context = make(agents=["writer", "judge"])
    speaking = agent_scope(agent) if agent else contextlib.nullcontext()
    client = library.Client(headers={"authorization": "Bearer mine"}, timeout=7)
    with client, enter(context), speaking:
        answer = client.post(f"{other.url}/v1/messages", json=BODY)
        client.post(f"{other.base_url}/chat/completions", json=BODY)
    assert answer.request.extensions["timeout"]["read"] == 7
    assert server.log == []
    assert {headers["authorization"] for _, headers, _ in other.log} == {"Bearer mine"}
    assert not [name for name in other.log[0][1] if name.startswith("x-agl-")]
    by = f"_by_{agent}" if agent else ""
    assert lost(context) == {f"sent_elsewhere{by}_to_{host(other)}": 2}


def test_a_scope_that_is_not_trainable_sends_where_it_likes(server, other, make):
    context = make()
    with httpx.Client() as client, enter(context), agent_scope("writer", trainable=False):
        client.post(f"{other.base_url}/chat/completions", json=BODY)
    assert (len(other.log), server.log) == (1, [])
    assert lost(context) == {f"sent_elsewhere_by_writer_to_{host(other)}": 1}


def test_other_requests_are_untouched(other, make):
    """C2: other HTTP of tools."""
    context = make(elsewhere="refuse")
    with httpx.Client() as client, enter(context), agent_scope("writer"):
        client.get(f"{other.base_url}/chat/completions")
        client.post(f"{other.url}/search", json=BODY)
    assert len(other.log) == 2
    assert lost(context) == {}


def test_requests_elsewhere_can_be_forbidden(server, other, make):
    context = make(elsewhere="refuse", allow_hosts=["localhost", "*.example.com"])
    allowed = other.base_url.replace("127.0.0.1", "localhost")
    with httpx.Client() as client, enter(context), agent_scope("planner"):
        with pytest.raises(CaptureError, match=r"agent 'planner'.*allow_hosts"):
            client.post(f"{other.base_url}/chat/completions", json=BODY)
        client.post(f"{allowed}/chat/completions", json=BODY)
        with agent_scope("writer"):
            client.post(f"{allowed}/chat/completions", json=BODY)
    assert (len(other.log), len(server.log)) == (1, 1)
    assert lost(context) == {
        f"refused_elsewhere_by_planner_to_{host(other)}": 1,
        f"sent_elsewhere_by_planner_to_{host(other).replace('127.0.0.1', 'localhost')}": 1,
    }


def test_what_is_sent_after_the_end_is_counted_late(other, make):
    context, late = make(), []
    context.recorder._on_late = late.append
    context.recorder.drain()
    with httpx.Client() as client, enter(context):
        client.post(f"{other.base_url}/chat/completions", json=BODY)
    assert lost(context) == {}
    (span,) = late
    assert span.attributes == {semconv.AGL_LOST: {f"sent_elsewhere_to_{host(other)}": 1}}


@LIBRARIES
def test_a_client_of_the_gateway_that_outlives_its_loop_reaches_it_again(library, server, make):
    """D2: its connections belong to an event loop that is closed."""
    clients = [library.AsyncClient(timeout=60)]

    async def ask(context):
        with enter(context), agent_scope("writer"):
            answer = await clients[0].post(f"{server.base_url}/chat/completions", json=BODY)
            assert answer.status_code == 200

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # nobody can close those connections
        for context in (make(), make()):
            asyncio.run(ask(context))
            assert [span.status for span in llm_spans(context)] == ["ok"]
        clients.clear()
        gc.collect()
    assert len(set(server.identities("call"))) == 2


def test_a_request_of_no_attempt_goes_out_where_counting_fails(server, other, caplog):
    """C3: telemetry never raises into user code."""

    def broken(cause):
        raise LookupError(cause)

    with counting_strays(Strays(origins_of(server.url), broken)):
        answer = httpx.post(f"{other.base_url}/chat/completions", json=BODY, timeout=60)

    assert answer.status_code == 200
    assert "LookupError" in caplog.text

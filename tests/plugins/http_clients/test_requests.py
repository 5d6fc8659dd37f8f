"""Model requests over requests, urllib3, urllib.request and aiohttp; and those of no attempt."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import urllib.request

import aiohttp
import httpx
import pytest
from agl_http_clients._integration import HttpClients

from agl_core.errors import CaptureError
from agl_core.tracing import Strays, agent_scope, attach, counting_strays, enter
from tests.core.tracing.test_elsewhere import BODY, host, lost

requests = pytest.importorskip("requests")
urllib3 = pytest.importorskip("urllib3")

DATA = json.dumps(BODY).encode()
JSON = {"content-type": "application/json"}


def by_requests(url):
    requests.post(url, json=BODY, timeout=60).raise_for_status()


def by_urllib3(url):
    with urllib3.PoolManager() as pool:
        pool.request("POST", url, json=BODY)


def by_urllib(url):
    with urllib.request.urlopen(url, DATA, timeout=60) as answer:
        answer.read()


def by_urllib_request(url):
    request = urllib.request.Request(url, DATA, JSON, method="POST")
    with urllib.request.urlopen(request) as answer:
        answer.read()


async def by_aiohttp(url):
    base, _, path = url.rpartition("/v1/")
    async with (
        aiohttp.ClientSession(f"{base}/v1/") as session,
        session.post(path, json=BODY) as answer,
    ):
        await answer.read()


SYNC = pytest.mark.parametrize("ask", [by_requests, by_urllib3, by_urllib, by_urllib_request])


@pytest.mark.usefixtures("attached")
@SYNC
def test_a_trained_agent_is_refused_before_anything_leaves(ask, server, other, make):
    """C2: an HTTP library whose requests cannot be rerouted."""
    context = make()
    with enter(context), agent_scope("writer"), pytest.raises(CaptureError, match="urllib"):
        ask(f"{other.base_url}/chat/completions")
    assert server.log == other.log == []
    assert lost(context) == {f"refused_elsewhere_by_writer_to_{host(other)}": 1}


@pytest.mark.usefixtures("attached")
@SYNC
def test_others_are_counted(ask, server, other, make):
    context = make()
    with enter(context), agent_scope("planner"):
        ask(f"{other.base_url}/chat/completions")
        ask(f"{other.base_url}/search")
        ask(f"{server.base_url}/chat/completions")
    assert (len(other.log), len(server.log)) == (2, 1)
    assert lost(context) == {f"sent_elsewhere_by_planner_to_{host(other)}": 1}


@pytest.mark.usefixtures("attached")
async def test_aiohttp(server, other, make):
    context = make()
    with enter(context):
        with agent_scope("writer"), pytest.raises(CaptureError, match="aiohttp"):
            await by_aiohttp(f"{other.base_url}/chat/completions")
        await by_aiohttp(f"{other.base_url}/chat/completions")
        await by_aiohttp(f"{server.base_url}/chat/completions")
    await by_aiohttp(f"{other.base_url}/chat/completions")
    assert (len(other.log), len(server.log)) == (2, 1)
    assert lost(context) == {
        f"refused_elsewhere_by_writer_to_{host(other)}": 1,
        f"sent_elsewhere_to_{host(other)}": 1,
    }


@pytest.mark.usefixtures("attached")
def test_a_client_over_another_library_is_counted_once(other, make):
    class Transport(httpx.BaseTransport):
        def handle_request(self, request):
            answer = requests.post(str(request.url), json=BODY, timeout=60)
            return httpx.Response(answer.status_code, content=answer.content)

    context = make()
    with httpx.Client(transport=Transport()) as client, enter(context):
        client.post(f"{other.base_url}/chat/completions", json=BODY)
    assert lost(context) == {f"sent_elsewhere_to_{host(other)}": 1}


@pytest.mark.usefixtures("attached")
@pytest.mark.parametrize("ask", [by_requests, lambda url: httpx.post(url, json=BODY)])
def test_threads_without_context_are_counted_by_who_runs_attempts(ask, server, other, make):
    """C3: no attempt is known, so no agent is."""
    counts = []
    context = make()
    with counting_strays(Strays(context.origins, counts.append)), enter(context):
        for address in (server.base_url, other.base_url):
            thread = threading.Thread(target=ask, args=(f"{address}/chat/completions",))
            thread.start()
            thread.join()
    ask(f"{other.base_url}/chat/completions")
    assert lost(context) == {}
    assert counts == [f"sent_elsewhere_to_{host(other)}"]


def test_detaching_puts_every_function_back():
    def functions():
        return (
            vars(urllib3.connectionpool.HTTPConnectionPool)["urlopen"],
            vars(urllib.request.OpenerDirector)["open"],
            vars(aiohttp.ClientSession)["_request"],
        )

    before, finders = functions(), list(sys.meta_path)
    attachment = attach(integrations=[HttpClients()])
    assert not set(functions()) & set(before)
    attachment.detach()
    assert functions() == before
    assert sys.meta_path == finders


def test_a_library_that_is_imported_later_is_watched_then():
    code = """
        import sys
        import agl_core.tracing
        from agl_http_clients._requests import Requests
        others = Requests()
        others.install()
        assert "urllib3" not in sys.modules
        import urllib3
        pool = urllib3.connectionpool.HTTPConnectionPool
        assert pool.urlopen.__wrapped__
        loader = urllib3.connectionpool.__spec__.loader
        assert type(loader).__module__ == "_frozen_importlib_external", loader
        assert urllib3.connectionpool.__loader__ is loader
        others.remove()
        assert not hasattr(pool.urlopen, "__wrapped__")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=100)

"""Addresses that HTTP libraries are given: odd ones are read as the library reads them."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import textwrap
import types
import urllib.error
import urllib.request

import aiohttp
import pytest
from agl_http_clients._requests import Requests

from agl_core.errors import CaptureError
from agl_core.tracing import agent_scope, enter, origins_of
from agl_core.types import SpanKind
from tests.core.tracing.test_elsewhere import BODY, host, lost

urllib3 = pytest.importorskip("urllib3")

DATA = json.dumps(BODY).encode()


def errors(context):
    return [span for span in context.recorder.snapshot() if span.kind is SpanKind.MESSAGE]


@pytest.mark.usefixtures("attached")
async def test_what_aiohttp_refuses_is_refused_with_its_own_error(make):
    """C2: counting changes no exception of a library, and refuses no attempt for one."""
    context = make()
    async with aiohttp.ClientSession() as session:
        with enter(context), agent_scope("writer"), pytest.raises(aiohttp.InvalidURL):
            await session.post("http://host:port/v1/chat/completions", json=BODY)
    assert lost(context) == {}
    assert errors(context) == []


@pytest.mark.usefixtures("attached")
def test_what_urllib_refuses_is_refused_with_its_own_error(make):
    """C2: counting refuses no attempt for what never left."""
    context = make()
    with enter(context), agent_scope("writer"), pytest.raises(http.client.InvalidURL):
        urllib.request.urlopen("http://host:port/v1/chat/completions", DATA)
    assert lost(context) == {}
    assert errors(context) == []


@pytest.mark.usefixtures("attached")
def test_a_query_that_holds_an_address_changes_no_address(server, make):
    """C3: a request to the gateway passes, whatever its query holds."""
    context = make()
    with enter(context), agent_scope("writer"), urllib3.PoolManager() as pool:
        pool.request("POST", f"{server.base_url}/chat/completions?back=http://x/y", json=BODY)
    assert len(server.log) == 1
    assert lost(context) == {}


@pytest.mark.usefixtures("attached")
def test_addresses_of_version_6_are_distinguished(make):
    """C3: the gateway may listen at [::1]."""
    context = make()
    context.origins = origins_of("http://[::1]:9")
    with enter(context), agent_scope("writer"), urllib3.PoolManager(retries=False) as pool:
        with pytest.raises(urllib3.exceptions.HTTPError):
            pool.request("POST", "http://[::1]:9/v1/chat/completions", json=BODY)
        with pytest.raises(CaptureError, match="writer"):
            pool.request("POST", "http://[::2]:9/v1/chat/completions", json=BODY)
    assert errors(context) == []
    assert lost(context) == {"refused_elsewhere_by_writer_to_[::2]:9": 1}


@pytest.mark.usefixtures("attached")
def test_the_method_of_a_request_is_its_own(other, make):
    """C2: a PUT with a body asks no model."""
    context = make()
    url = f"{other.base_url}/chat/completions"
    with enter(context), agent_scope("planner"):
        for method in ("PUT", None):
            request = urllib.request.Request(url, method=method)
            try:
                urllib.request.urlopen(request, DATA).close()
            except urllib.error.HTTPError as error:  # 501: the server knows no PUT
                error.close()
    assert lost(context) == {f"sent_elsewhere_by_planner_to_{host(other)}": 1}


def test_a_library_without_the_function_is_named_and_still_imported(monkeypatch, caplog):
    """C2: what agl-core cannot wrap never breaks an import of the program."""
    others = Requests()
    monkeypatch.setitem(sys.modules, "aiohttp.client", types.ModuleType("aiohttp.client"))

    others.install()
    others.remove()

    assert "Model requests over aiohttp.client are not counted" in caplog.text
    assert not hasattr(urllib.request.OpenerDirector.open, "__wrapped__")


def test_a_module_that_is_only_found_has_its_source():
    code = """
        import importlib.util
        from agl_http_clients._requests import Requests
        Requests().install()
        spec = importlib.util.find_spec("urllib3.connectionpool")
        assert "HTTPConnectionPool" in spec.loader.get_source("urllib3.connectionpool")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=100)

"""G15: another name for an agent, for one attempt."""

from __future__ import annotations

import contextvars
import threading

import httpx
import pytest

import agl_core as agl
from agl_core import semconv
from agl_core.errors import ConfigError
from agl_core.tracing import child_environment, enter
from agl_core.tracing._attachment import inherited_context

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(autouse=True)
def attached():
    attachment = agl.attach()
    yield
    attachment.detach()


def ask(server, agent, path=""):
    with httpx.Client(timeout=60) as client, agl.agent_scope(agent):
        client.post(f"{server.url}{path}/v1/chat/completions", json=BODY)


def test_an_alias_leaves_as_a_header_beside_the_name(server, make_context):
    """G15: the alias travels beside the name, and no model reads it."""
    with enter(make_context()):
        agl.alias("seat 3", "wérewolf")
        ask(server, "seat 3")
        ask(server, "seat 4")
    assert server.identities("agent") == ["seat 3", "seat 4"]
    assert server.identities("alias") == ["wérewolf", None]
    assert [body for _, _, body in server.log] == [BODY, BODY]


def test_an_alias_belongs_to_one_attempt(server, make_context):
    """G15: roles change from attempt to attempt."""
    for name, role in (("1", "wolf"), ("2", "villager"), ("3", None)):
        with enter(make_context(name)):
            if role is not None:
                agl.alias("seat 3", role)
            ask(server, "seat 3")
    assert server.identities("alias") == ["wolf", "villager", None]


def test_an_alias_holds_in_threads(server, make_context):
    """G15: threads that carry the context have the attempt's aliases."""
    with enter(make_context()):
        setting = contextvars.copy_context()
        thread = threading.Thread(target=setting.run, args=(agl.alias, "seat 3", "wolf"))
        thread.start()
        thread.join()
        asking = contextvars.copy_context()
        thread = threading.Thread(target=asking.run, args=(ask, server, "seat 3"))
        thread.start()
        thread.join()
    assert server.identities("alias") == ["wolf"]


def test_an_agent_named_in_the_url_has_its_alias(server, make_context):
    """G15: the alias goes by the name, however the request spells it."""
    with enter(make_context()), httpx.Client(timeout=60) as client:
        agl.alias("seat 3", "wolf")
        path = "/r/rollout_1/a/attempt_1/agent/seat%203/v1/chat/completions"
        client.post(server.url + path, json=BODY)
    assert server.identities("alias") == ["wolf"]


def test_an_alias_after_the_first_call_is_refused(server, make_context):
    """G15: calls of one agent in one attempt have one alias."""
    with enter(make_context()):
        ask(server, "seat 3")
        with pytest.raises(ConfigError, match=r"'seat 3'.*without an alias: set the alias before"):
            agl.alias("seat 3", "wolf")
        agl.alias("seat 4", "villager")
        agl.alias("seat 4", "wolf")
        ask(server, "seat 4")
        agl.alias("seat 4", "wolf")
        with pytest.raises(ConfigError, match="under the alias 'wolf'"):
            agl.alias("seat 4", "villager")
        ask(server, "seat 4")
    assert server.identities("alias") == [None, "wolf", "wolf"]


@pytest.mark.parametrize(
    ("name", "alias"), [("", "wolf"), ("seat", ""), (3, "wolf"), ("seat", None), ("seat", "@wolf")]
)
def test_names_are_text_that_no_framework_reserves(name, alias, make_context):
    """G15: what cannot be an alias is an error that names the parameter and the value."""
    with enter(make_context()), pytest.raises(ConfigError, match=r"agl\.alias got (name|alias)="):
        agl.alias(name, alias)


def test_outside_a_rollout_an_alias_does_nothing():
    """G15: instrumented code runs unchanged in production."""
    agl.alias("seat 3", "wolf")
    agl.alias("", "")


def test_a_subprocess_inherits_the_aliases(server, make_context, monkeypatch, caplog):
    """G15: the calls of a Python subprocess carry them too."""
    with enter(make_context()):
        agl.alias("seat 3", "wolf")
        environment = child_environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    context, _ = inherited_context()
    assert context is not None
    with enter(context), httpx.Client(timeout=60) as client:
        agl.alias("seat 4", "villager")
        for seat in ("3", "4"):
            headers = {"x-agl-agent": f"seat%20{seat}"}
            client.post(f"{server.base_url}/chat/completions", json=BODY, headers=headers)
    assert server.identities("alias") == ["wolf", "villager"]
    assert caplog.records == []


def test_an_alias_stands_in_the_trace(make_context):
    """G15: what the program said is recorded, also where no call follows."""
    context = make_context()
    with enter(context):
        agl.alias("seat 3", "wolf")
    (span,) = context.recorder.snapshot()
    assert span.attributes == {semconv.AGL_AGENT: "seat 3", semconv.AGL_ALIAS: "wolf"}

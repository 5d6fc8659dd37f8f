from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import httpx
import httpx2
import pytest

from agl_core.errors import ConfigError
from agl_core.tracing import (
    Patch,
    agent_scope,
    attach,
    child_environment,
    current,
    current_scope,
    enter,
)
from agl_core.tracing._wire import Wire
from tests.core.tracing.scopes import open_scope

OWNERS = (httpx.Client, httpx.AsyncClient, httpx2.Client, httpx2.AsyncClient)


def sends():
    return [owner.__dict__["send"] for owner in OWNERS]


class Hooks:
    def __init__(self, name="toy", *, fails=False):
        self.name = name
        self.fails = fails
        self.calls = []

    def attach(self):
        self.calls.append("attach")
        if self.fails:
            raise ConfigError("unknown framework version")

    def detach(self):
        self.calls.append("detach")

    def identity(self):
        return None


def test_attaching_wraps_once_and_detaching_restores_the_very_functions():
    originals = sends()
    first = attach()
    wrapped = sends()
    assert all(new is not old for new, old in zip(wrapped, originals, strict=True))
    second = attach()
    assert sends() == wrapped
    first.detach()
    first.detach()
    assert sends() == wrapped
    second.detach()
    assert all(new is old for new, old in zip(sends(), originals, strict=True))


def test_a_wrapped_function_keeps_name_doc_and_signature():
    attachment = attach()
    assert httpx.Client.send.__qualname__ == "Client.send"
    assert httpx.Client.send.__doc__
    attachment.detach()


def test_integrations_of_one_name_are_attached_once_and_detached_last():
    hooks, twin, other = Hooks(), Hooks(), Hooks("other")
    first = attach(integrations=[hooks, other])
    second = attach(integrations=[twin])
    first.detach()
    assert (hooks.calls, twin.calls) == (["attach"], [])
    assert other.calls == ["attach", "detach"]
    second.detach()
    assert (hooks.calls, twin.calls) == (["attach", "detach"], [])


def test_an_integration_that_cannot_attach_leaves_nothing_behind():
    originals = sends()
    hooks = Hooks()
    with pytest.raises(ConfigError, match="unknown framework version"):
        attach(integrations=[hooks, Hooks("broken", fails=True)])
    assert hooks.calls == ["attach", "detach"]
    assert sends() == originals


def test_a_wrapper_put_over_ours_stays_and_ours_passes_through(server, make_context):
    original = httpx.Client.send
    attachment = attach()
    ours = httpx.Client.send

    def theirs(client, request, **options):
        return ours(client, request, **options)

    httpx.Client.send = theirs
    try:
        attachment.detach()
        assert httpx.Client.send is theirs
        again = attach()
        context = make_context()
        with enter(context), httpx.Client(timeout=60) as client:
            client.post(f"{server.base_url}/chat/completions", json={})
        again.detach()
        assert httpx.Client.send is theirs
        assert len(context.recorder.drain()) == 1
    finally:
        httpx.Client.send = original


class Library:
    __name__ = "httpx9"
    __version__ = "9.0"
    SyncByteStream = AsyncByteStream = object

    class Client:
        def send(self, request, *, stream=False, auth=None, follow_redirects=None):
            return request

    class AsyncClient:
        async def send(self, message, *, stream=False):
            return message


def test_an_unknown_send_is_refused_loudly_and_nothing_is_patched():
    originals = (Library.Client.send, Library.AsyncClient.send)
    with pytest.raises(ConfigError, match=r"httpx9 9\.0: .*AsyncClient\.send.*unrecorded"):
        Wire([]).install([httpx, Library()])
    assert (Library.Client.send, Library.AsyncClient.send) == originals
    assert not hasattr(httpx.Client.send, "__wrapped__")


def test_a_patch_checks_before_it_changes_anything():
    with pytest.raises(ConfigError):
        Patch(Library(), Library.AsyncClient, "send", lambda original, _: original)


class Speaker:
    def say(self, text, *, loudly=False):
        return text


def test_a_patch_of_any_function_names_the_parameters_it_needs():
    def shouting(original, live):
        def say(speaker, text, **options):
            return original(speaker, text.upper() if live() else text, **options)

        return say

    with pytest.raises(ConfigError, match=r"Speaker\.say.*say\(self, words\)"):
        Patch(Library(), Speaker, "say", shouting, parameters=("words",))
    original = Speaker.say
    Patch(Library(), Speaker, "say", shouting, parameters=("text", "loudly"))
    patch = Patch(Library(), Speaker, "say", shouting, parameters=None)
    patch.install()
    assert Speaker().say("tea", loudly=True) == "TEA"
    patch.remove()
    assert Speaker.say is original


def test_a_patch_of_an_inherited_function_leaves_nothing_behind():
    class Guest(Speaker):
        pass

    patch = Patch(Library(), Guest, "say", lambda original, _: original, parameters=None)
    patch.install()
    assert "say" in vars(Guest)
    patch.remove()
    assert "say" not in vars(Guest)


def run_python(code, env, *flags):
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_importing_tracing_imports_no_http_library():
    code = """
        import sys
        import agl_core.tracing
        print([name for name in ("httpx", "httpx2", "aiohttp", "pydantic", "asyncio")
               if name in sys.modules])
    """
    assert run_python(code, {}) == "[]\n"


CHILD = """
    import json, logging, os, threading, urllib.parse
    logging.basicConfig(format="%(message)s", handlers=[logging.FileHandler("LOG")])
    import httpx
    from agl_core.tracing import agent_scope, attach, current, emit_message, emit_reward
    attachment = attach()
    def call():
        httpx.post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json={}, timeout=60)
    def work():
        call()
        with agent_scope("inner"):
            call()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    emit_reward(1.0)
    emit_message("x")
    context = current()
    print(json.dumps([context.llm.model, context.seconds_left(), context.recorder.late]))
    attachment.detach()
    call()
"""


def test_a_subprocess_inherits_the_identity_and_says_what_it_cannot_keep(
    server, make_context, tmp_path
):
    context = make_context(seconds=500)
    with enter(context), agent_scope("writer é", trainable=False) as scope:
        env = child_environment()
    code = CHILD.replace("LOG", str(tmp_path / "log"))
    model, left, late = json.loads(run_python(code, env))
    assert model == "m"
    assert 0 < left <= 500
    assert late == 5  # a reward, a message, the scope and two calls
    assert server.identities("rollout") == ["rollout_1", "rollout_1", None]
    assert server.identities("agent") == ["writer é", "inner", None]
    assert server.identities("agent-run")[0] == scope.span_id
    assert server.identities("trainable")[0] == "0"
    assert server.log[0][0] == "/r/rollout_1/a/attempt_1/v1/chat/completions"
    assert (tmp_path / "log").read_text().count("is lost") == 1


def test_a_subprocess_of_nobody_stays_untrainable(make_context, monkeypatch):
    with enter(make_context()):
        open_scope("operation", span_id="span_1", trainable=False)
        env = child_environment()
    monkeypatch.setenv("AGL_CONTEXT", env["AGL_CONTEXT"])
    attachment = attach()
    try:
        scope = current_scope()
        assert (scope.agent, scope.trainable) == (None, False)
        with agent_scope("inner") as inner:
            assert (inner.agent, inner.trainable) == ("inner", False)
    finally:
        attachment.detach()
    assert current_scope() is None


def test_a_named_agent_goes_into_the_url_for_programs_of_any_language(make_context):
    with enter(make_context()):
        env = child_environment(agent="the writer")
    assert env["OPENAI_BASE_URL"].endswith("/r/rollout_1/a/attempt_1/agent/the%20writer/v1")
    assert env["OPENAI_API_KEY"] == "key"


def test_a_child_keeps_the_key_of_its_attempt(make_context, monkeypatch):
    """F2: whatever its program does to the variable that its clients read."""
    with enter(make_context()):
        env = child_environment()
    monkeypatch.setenv("AGL_CONTEXT", env["AGL_CONTEXT"])
    monkeypatch.setenv("OPENAI_API_KEY", "of a .env file")
    attachment = attach()
    try:
        assert current().llm.api_key == "key"
    finally:
        attachment.detach()


def test_a_malformed_context_is_not_repeated_as_it_holds_a_key(monkeypatch):
    """F2."""
    monkeypatch.setenv("AGL_CONTEXT", '{"api_key": "agl-secret"}')
    with pytest.raises(ConfigError) as caught:
        attach()
    assert "agl-secret" not in str(caught.value)


def test_a_malformed_context_is_refused_before_anything_is_patched(monkeypatch):
    originals = sends()
    for text in ("nonsense", '{"rollout": "r"}', '{"rollout": 1, "attempt": "a", "origins": []}'):
        monkeypatch.setenv("AGL_CONTEXT", text)
        with pytest.raises(ConfigError, match="child_environment"):
            attach()
    assert sends() == originals

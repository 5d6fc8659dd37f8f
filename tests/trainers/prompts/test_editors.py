"""Editor models over real HTTP, and functions in their place."""

from __future__ import annotations

import asyncio
import json

import pytest
from agl_prompts import (
    EditorError,
    EditorOptions,
    EditorsFailedError,
    EditorsSpentError,
    PromptOptimizer,
    Study,
    StudyOptions,
    tunes,
)
from agl_prompts import _clients as clients
from aiohttp import web

from agl_core.config import validate
from agl_core.errors import ConfigError
from tests.trainers.prompts.fakes import FakePhase

ASKED = [{"role": "user", "content": "Improve this."}]


def says(text, *, tokens=None, finish="stop"):
    document = {"choices": [{"message": {"content": text}, "finish_reason": finish}]}
    if tokens is not None:
        document["usage"] = {"total_tokens": tokens}
    return web.json_response(document)


class Endpoint:
    """A server that answers from a list; the last answer is repeated."""

    def __init__(self):
        self.answers = [lambda: says("better")]
        self.bodies = []
        self.keys = []
        self.url = ""

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        host, port = self.runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()

    async def _chat(self, request):
        self.bodies.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return answer()


@pytest.fixture
async def endpoint():
    async with Endpoint() as made:
        yield made


@pytest.fixture
async def open_study(tmp_path):
    opened = []

    def make(**options):
        phase = FakePhase(tmp_path)
        opened.append(Study(phase, validate(StudyOptions, options)))
        return opened[-1], phase

    yield make
    for study in opened:
        await study.close()


def at(endpoint, **options):
    return {"base_url": endpoint.url, "model": "editor-model", **options}


async def test_an_endpoint_gets_messages_key_and_sampling(endpoint, open_study, monkeypatch):
    monkeypatch.setenv("EDITOR_KEY", "k-1")
    study, _ = open_study(
        editor=at(endpoint, api_key_env="EDITOR_KEY", max_tokens=50),
        critic=at(endpoint, temperature=None),
    )
    assert await study.edit(ASKED, role="editor") == "better"
    assert await study.edit(ASKED, role="critic") == "better"
    assert endpoint.bodies == [
        {"model": "editor-model", "messages": ASKED, "temperature": 1.0, "max_tokens": 50},
        {"model": "editor-model", "messages": ASKED},
    ]
    assert endpoint.keys == ["Bearer k-1", None]


async def test_no_key_in_its_variable_is_a_configuration_error(open_study, monkeypatch):
    monkeypatch.delenv("EDITOR_KEY", raising=False)
    with pytest.raises(ConfigError, match="'EDITOR_KEY' is not set"):
        open_study(
            editor={"base_url": "http://localhost:1/v1", "model": "m", "api_key_env": "EDITOR_KEY"}
        )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "either base_url"),
        ({"base_url": "http://h/v1", "function": "m:f", "model": "m"}, "either base_url"),
        ({"base_url": "http://h/v1"}, "set model"),
        ({"base_url": "h/v1", "model": "m"}, "write http"),
        ({"function": "no_such_module_here:f"}, "no module"),
        ({"function": "json:no_such"}, "no attribute"),
        ({"function": "sys:version"}, "not a function"),
        ({"base_url": "http://h/v1", "model": "m", "calls": 0}, "calls"),
        ({"functions": "m:f"}, "did you mean|function"),
    ],
)
async def test_a_wrong_option_is_a_configuration_error(open_study, given, words):
    with pytest.raises(ConfigError, match=words):
        open_study(editor=given)


REFUSALS = [
    (
        lambda: web.json_response({"error": "bad key k-1"}, status=401),
        1,
        "answered 401.*Check the key in the environment variable EDITOR_KEY",
    ),
    (
        lambda: web.json_response({"error": "x"}, status=404),
        1,
        "answered 404.*base_url ends in /v1",
    ),
    (
        lambda: web.Response(text="slow", status=429, headers={"Retry-After": "0"}),
        3,
        r"answered 429.*3 tries",
    ),
    (
        lambda: web.Response(text="down", status=503, headers={"Retry-After": "0"}),
        3,
        "answered 503",
    ),
    (lambda: web.Response(status=429, headers={"Retry-After": "3600"}), 1, r"wait 3600 s"),
    (
        lambda: web.Response(text="<html><body>Log in</body></html>", content_type="text/html"),
        1,
        "gave HTML.*Log in",
    ),
    (lambda: web.Response(text="{}"), 1, "no answer of chat completions"),
    (lambda: web.Response(text="[[["), 1, "no answer of chat completions"),
    (lambda: says(["part"]), 1, "gave no text"),
    (lambda: says("begi", finish="length"), 1, "cut off at a token limit"),
]


@pytest.mark.parametrize(("answer", "requests", "words"), REFUSALS)
async def test_an_endpoint_that_does_not_answer_is_an_error(
    endpoint, open_study, monkeypatch, answer, requests, words
):
    monkeypatch.setenv("EDITOR_KEY", "k-1")
    endpoint.answers = [answer]
    study, phase = open_study(editor=at(endpoint, api_key_env="EDITOR_KEY"))
    with pytest.raises(EditorError, match=words) as caught:
        await study.edit(ASKED, role="editor")
    assert len(endpoint.bodies) == requests
    assert "k-1" not in str(caught.value)
    assert phase.losses.counts == {"prompts_editor_failed": 1}


async def test_a_busy_endpoint_is_asked_again_after_its_pause(endpoint, open_study):
    busy = [
        lambda: web.Response(status=429, headers={"Retry-After": "0"}),
        lambda: web.Response(status=429, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
    ]
    endpoint.answers = [*busy, lambda: says("better")]
    study, phase = open_study(editor=at(endpoint))
    assert await study.edit(ASKED, role="editor") == "better"
    assert len(endpoint.bodies) == 3
    assert phase.losses.counts == {}


async def test_no_endpoint_is_an_error(open_study, monkeypatch):
    monkeypatch.setattr(clients, "_PAUSE_S", 0.0)
    study, _ = open_study(editor={"base_url": "http://127.0.0.1:9/v1", "model": "m"})
    with pytest.raises(EditorError, match=r"Cannot reach http://127.0.0.1:9/v1"):
        await study.edit(ASKED, role="editor")


async def test_an_empty_answer_is_an_answer(endpoint, open_study):
    endpoint.answers = [lambda: says(None)]
    study, phase = open_study(editor=at(endpoint))
    assert await study.edit(ASKED, role="editor") == ""
    assert phase.losses.counts == {}


async def test_half_an_emoji_is_replaced_in_both_directions(endpoint, open_study):
    endpoint.answers = [
        lambda: web.Response(text='{"choices": [{"message": {"content": "a\\ud83d"}}]}')
    ]
    study, _ = open_study(editor=at(endpoint))
    assert await study.edit([{"role": "user", "content": "b\ud83d"}], role="editor") == "a\ufffd"
    assert endpoint.bodies[0]["messages"][0]["content"] == "b\ufffd"


async def test_three_failures_in_a_row_end_the_study(endpoint, open_study):
    bad = lambda: web.Response(text="{}")  # noqa: E731
    endpoint.answers = [bad, bad, lambda: says("better"), bad]
    study, phase = open_study(editor=at(endpoint))
    for _ in range(2):
        with pytest.raises(EditorError):
            await study.edit(ASKED, role="editor")
    await study.edit(ASKED, role="editor")
    for _ in range(2):
        with pytest.raises(EditorError):
            await study.edit(ASKED, role="critic")
    with pytest.raises(EditorsFailedError, match=r"3 times in a row.*no answer of chat"):
        await study.edit(ASKED, role="editor")
    assert phase.losses.counts == {"prompts_editor_failed": 5}


async def test_the_limit_of_calls_is_shared_by_both_roles_of_a_model(endpoint, open_study):
    study, _ = open_study(editor=at(endpoint, calls=2))
    await study.edit(ASKED, role="editor")
    await study.edit(ASKED, role="critic")
    with pytest.raises(EditorsSpentError, match=r"editor.calls = 2"):
        await study.edit(ASKED, role="editor")
    assert len(endpoint.bodies) == 2


async def test_a_critic_has_its_own_limit(endpoint, open_study):
    study, _ = open_study(editor=at(endpoint), critic=at(endpoint, calls=1))
    await study.edit(ASKED, role="critic")
    with pytest.raises(EditorsSpentError, match=r"critic.calls = 1"):
        await study.edit(ASKED, role="critic")
    await study.edit(ASKED, role="editor")


async def test_the_limit_of_tokens_bounds_the_next_answer(endpoint, open_study):
    endpoint.answers = [lambda: says("better", tokens=60)]
    study, _ = open_study(editor=at(endpoint, tokens=100))
    await study.edit(ASKED, role="editor")
    await study.edit(ASKED, role="editor")
    with pytest.raises(EditorsSpentError, match=r"editor.tokens = 100: 120 tokens were used"):
        await study.edit(ASKED, role="editor")
    prompt = clients.estimated_tokens(json.dumps(ASKED))
    assert [body["max_tokens"] for body in endpoint.bodies] == [100 - prompt, 40 - prompt]


async def test_concurrent_calls_respect_the_limit_of_tokens(endpoint, open_study):
    endpoint.answers = [lambda: says("better", tokens=50)]
    study, _ = open_study(editor=at(endpoint, tokens=100))
    calls = [study.edit(ASKED, role="editor") for _ in range(5)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[:2] == ["better", "better"]
    assert {type(each) for each in results[2:]} == {EditorsSpentError}


async def test_without_usage_tokens_are_estimated(endpoint, open_study):
    endpoint.answers = [lambda: says("x" * 400)]
    study, _ = open_study(editor=at(endpoint, tokens=120))
    await study.edit(ASKED, role="editor")
    with pytest.raises(EditorsSpentError, match=f"{100 + 12} tokens|11. tokens"):
        await study.edit(ASKED, role="editor")


FUNCTIONS = """
import asyncio

def sync(messages, role):
    messages.append("changed")
    return f"{role}: {messages[0]['content']}"

async def asynchronous(messages, role):
    await asyncio.sleep(0)
    return "async"

class Editor:
    async def __call__(self, messages, role):
        return "object"

editor = Editor()

def raises(messages, role):
    raise KeyError("gone")

def number(messages, role):
    return 3
"""


@pytest.fixture
def functions(tmp_path):
    file = tmp_path / "functions_of_an_editor.py"
    file.write_text(FUNCTIONS)
    return file


@pytest.mark.parametrize(
    ("name", "answer"),
    [("sync", "editor: Improve this."), ("asynchronous", "async"), ("editor", "object")],
)
async def test_a_function_replaces_the_endpoint(functions, open_study, name, answer):
    study, _ = open_study(editor={"function": f"{functions}:{name}"})
    asked = [dict(ASKED[0])]
    assert await study.edit(asked, role="editor") == answer
    assert asked == ASKED


@pytest.mark.parametrize(
    ("name", "words"), [("raises", "raised KeyError: 'gone'"), ("number", "returned 3: return a")]
)
async def test_a_function_that_fails_is_an_editor_that_fails(functions, open_study, name, words):
    study, _ = open_study(editor={"function": f"{functions}:{name}"})
    with pytest.raises(EditorError, match=words):
        await study.edit(ASKED, role="editor")


class Asks(PromptOptimizer):
    roles = ("critic", "editor")

    def least(self, study):
        return 1

    async def optimize(self, study):
        for number in range(study.options.max_chars):
            try:
                await study.edit([{"role": "user", "content": str(number)}], role="editor")
            except EditorError:
                continue
        return study.incumbent


@pytest.mark.parametrize("calls", [1, 2, 3, 9])
async def test_an_editor_that_never_answered_fails_the_phase(endpoint, tmp_path, calls):
    endpoint.answers = [lambda: web.Response(status=401)]
    options = StudyOptions(editor=EditorOptions(**at(endpoint)), max_chars=calls)
    with pytest.raises(EditorError, match="answered 401") as caught:
        await tunes(Asks)(options).optimize(FakePhase(tmp_path))
    assert "was answered" in str(caught.value)
    assert len(endpoint.bodies) == min(calls, 3)


async def test_an_editor_that_fails_later_ends_the_phase_with_the_reason(endpoint, tmp_path):
    endpoint.answers = [lambda: says("better"), lambda: web.Response(status=401)]
    options = StudyOptions(editor=EditorOptions(**at(endpoint)), max_chars=9)
    tuned = await tunes(Asks)(options).optimize(FakePhase(tmp_path))
    assert "answered 401" in tuned.reason
    assert tuned.calls == {"editor": 4}


async def test_without_an_editor_the_phase_does_not_start(tmp_path):
    phase = FakePhase(tmp_path)
    with pytest.raises(ConfigError, match=r"critic and editor.*\[optimizers.fake.critic\]"):
        await tunes(Asks)(StudyOptions()).optimize(phase)
    assert not phase.asked

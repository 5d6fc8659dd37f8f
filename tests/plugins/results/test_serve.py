"""``agl serve``: tuned prompts for a program that cannot be edited."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from agl_results._serve import serve
from agl_testing.fake_openai import FakeOpenAI, FakeOptions

from agl_core.errors import ConfigError, TrainingError
from agl_core.types import PromptTemplate
from tests.plugins.results.conftest import CONFIG, captured
from tests.trainers.prompts.runs import WrittenRun

KNOWN = "You are the writer of {item}."
SENT = [
    {"role": "system", "content": "You are the writer of tea. Date: today"},
    {"role": "user", "content": "hi"},
]
TOOL = {"type": "function", "function": {"name": "search", "description": "Searches."}}


def tuned(**fields):
    return captured("Sell {item}.", known=KNOWN, **fields)


@asynccontextmanager
async def serving(run, host="127.0.0.1", **config):
    """Serve a run whose models an endpoint serves; yields its base URL and what the endpoint got."""
    async with FakeOpenAI(options=FakeOptions(models=("real-model",), tokenize=True)) as server:
        section = {**CONFIG["engine"], "base_url": server.base_url}
        settings = {**CONFIG, "model": "real-model", "engine": section, **config}
        (run.directory / "config.json").write_bytes(msgspec.json.encode(settings))
        ready = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(serve(run.directory, host=host, port=0, ready=ready))
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        async with aiohttp.ClientSession() as session:
            try:
                yield Client(session, (await ready).removesuffix("/v1"), server)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


class Client:
    def __init__(self, session, url, server):
        self.session, self.url, self.server = session, url, server

    async def post(self, path, *, key="any", **body):
        body = {"model": "gpt-of-the-program", "messages": SENT, **body}
        headers = {"authorization": f"Bearer {key}"}
        async with self.session.post(self.url + path, json=body, headers=headers) as answer:
            return answer.status, await answer.text()

    @property
    def received(self):
        return self.server.log[-1].body


@pytest.fixture
def run(tmp_path):
    return WrittenRun(tmp_path / "shop", **CONFIG)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agents_requests_have_its_tuned_prompt(run, stream, capsys):
    run.checkpoint(0, writer=tuned())
    async with serving(run) as client:
        for agent in ("writer", "planner"):
            status, said = await client.post(f"/agent/{agent}/v1/chat/completions", stream=stream)
            assert status == 200, said
        writer, planner = (answer.body for answer in client.server.log)
        assert f"{client.url}/agent/writer/v1: prompt 'writer'" in capsys.readouterr().out
    assert writer["messages"][0]["content"] == "Sell tea. Date: today"
    assert planner["messages"] == SENT
    assert {writer["model"], planner["model"]} == {"real-model"}
    assert ("data: [DONE]" in said) == stream


async def test_responses_and_counted_prompts_have_it_too(run):
    run.checkpoint(0, writer=tuned())
    async with serving(run) as client:
        asked = {"model": "any", "input": "hi", "instructions": SENT[0]["content"]}
        async with client.session.post(
            f"{client.url}/agent/writer/v1/responses", json=asked
        ) as answer:
            assert answer.status == 200, await answer.text()
        assert client.received["messages"][0]["content"] == "Sell tea. Date: today"
        counted = []
        for agent in ("writer", "planner"):
            status, said = await client.post(f"/agent/{agent}/tokenize")
            assert status == 200, said
            counted.append(msgspec.json.decode(said)["count"])
    assert counted[0] < counted[1]


async def test_names_are_percent_encoded_and_globs_match(run):
    run.checkpoint(0, writer=tuned(agents=("wr té*",)))
    async with serving(run) as client:
        await client.post("/agent/wr%20t%C3%A9%2F2/v1/chat/completions")
        assert client.received["messages"][0]["content"] == "Sell tea. Date: today"
        assert (await client.post("/agent/%FF/v1/chat/completions"))[0] == 400


async def test_a_tools_description_is_tuned(run):
    run.checkpoint(0, find=captured("Finds.", known="Searches.", tool="search"))
    async with serving(run) as client:
        await client.post("/agent/writer/v1/chat/completions", tools=[TOOL])
        assert client.received["tools"][0]["function"]["description"] == "Finds."
        assert client.received["messages"] == SENT


async def test_a_request_without_the_known_text_is_sent_as_it_is_and_reported_once(run, caplog):
    run.checkpoint(0, writer=tuned())
    own = [{"role": "system", "content": "Another prompt."}, SENT[1]]
    async with serving(run) as client:
        for _ in range(2):
            status, _ = await client.post("/agent/writer/v1/chat/completions", messages=own)
            assert (status, client.received["messages"]) == (200, own)
    (record,) = [each for each in caplog.records if each.name == "agl_core.results"]
    assert "agent 'writer' does not have the text" in record.getMessage()


async def test_requests_without_an_agent_are_routed_by_their_model(run):
    run.checkpoint(0, writer=tuned())
    policies = {
        "small": {"agents": ["writer"], "model": "model-a"},
        "large": {"agents": ["*"], "model": "model-b"},
    }
    async with serving(run, policies=policies) as client:
        async with client.session.get(f"{client.url}/v1/models") as answer:
            rows = (await answer.json())["data"]
        assert [row["id"] for row in rows] == ["small", "large"]
        assert (await client.post("/v1/chat/completions", model="large"))[0] == 200
        assert (client.received["model"], client.received["messages"]) == ("model-b", SENT)
        await client.post("/agent/writer/v1/chat/completions", model="large")
        assert client.received["model"] == "model-a", "the agent decides"
        status, said = await client.post("/v1/chat/completions")
        assert status == 404
        assert "/agent/NAME/v1" in said


async def test_a_malformed_request_is_refused(run):
    run.checkpoint(0, writer=tuned())
    async with serving(run) as client:
        status, said = await client.post("/agent/writer/v1/chat/completions", messages="none")
        assert (status, "no chat request" in said) == (400, True)
        assert (await client.post("/agent/writer/v1/unknown"))[0] == 404
        assert (await client.post("/agent//v1/chat/completions"))[0] == 404


async def test_a_run_without_weights_and_captured_prompts_has_nothing_to_serve(run):
    run.checkpoint(0, greeting=PromptTemplate(template="Hi", agents=("host",)))
    with pytest.raises(ConfigError, match=r"nothing to serve.*agl export .* --prompts DIR"):
        await serve(run.directory, host="127.0.0.1", port=0)


async def test_a_run_that_has_learned_nothing_is_named(run, tmp_path):
    (run.directory / "prompts").mkdir()
    with pytest.raises(ConfigError, match="has no checkpoint"):
        await serve(run.directory, host="127.0.0.1", port=0)
    with pytest.raises(ConfigError, match="'absent' is not a run"):
        await serve("absent", host="127.0.0.1", port=0)


async def test_a_damaged_checkpoint_is_not_served(run):
    checkpoint = run.checkpoint(0, writer=tuned())
    (checkpoint / "state.json").write_text("{")
    with pytest.raises(TrainingError, match="damaged"):
        await serve(checkpoint, host="127.0.0.1", port=0)


@pytest.mark.parametrize("given", ["secret of the team", None])
async def test_beyond_this_machine_every_request_needs_the_key(run, given, monkeypatch, capsys):
    if given is None:
        monkeypatch.delenv("AGL_API_KEY", raising=False)
    else:
        monkeypatch.setenv("AGL_API_KEY", given)
    run.checkpoint(0, writer=tuned())
    async with serving(run, host="0.0.0.0") as client:
        printed = capsys.readouterr().out
        key = given or printed.partition("Key: ")[2].split()[0]
        assert given is None or given not in printed
        path = "/agent/writer/v1/chat/completions"
        status, said = await client.post(path, key="another")
        assert (status, "API key" in said, client.server.log) == (401, True, [])
        assert (await client.post("/v1/models", key=""))[0] == 401
        assert (await client.post(path, key=key))[0] == 200

"""``agl serve``: trained weights behind an endpoint that any client can use."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import aiohttp
import pytest
from agl_results._serve import serve

from agl_core.errors import ConfigError
from agl_core.types import PromptTemplate
from tests.trainers.prompts.runs import WrittenRun


async def _served(directory: str) -> tuple[asyncio.Task[None], str]:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(Path(directory), host="127.0.0.1", port=0, ready=ready))
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    return task, await ready


async def test_weights_answer_plainly_and_streamed(model_path: str) -> None:
    task, url = await _served(model_path)
    body = {
        "model": Path(model_path).name,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 4,
    }
    try:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url}/models") as response:
                models = await response.json()
            async with session.post(f"{url}/chat/completions", json=body) as response:
                answer = await response.json()
            counting = url.removesuffix("/v1") + "/tokenize"
            async with session.post(counting, json=body) as response:
                counted = await response.json()
            async with session.post(counting, json={"messages": []}) as response:
                assert response.status == 400
            streamed = {**body, "stream": True}
            async with session.post(f"{url}/chat/completions", json=streamed) as response:
                events = (await response.text()).split("\n\n")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert models["data"][0]["id"] == Path(model_path).name
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["usage"]["completion_tokens"] <= 4
    assert counted["count"] == answer["usage"]["prompt_tokens"] < counted["max_model_len"]
    assert events[-2] == "data: [DONE]"


async def test_a_bad_request_is_answered_in_the_wire_form(model_path: str) -> None:
    task, url = await _served(model_path)
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/chat/completions", json={"messages": "none"}) as response,
        ):
            status, answer = response.status, await response.json()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert status == 400
    assert answer["error"]["message"]


async def test_a_taken_port_is_named(model_path: str) -> None:
    task, url = await _served(model_path)
    port = int(url.rsplit(":", 1)[1].split("/")[0])
    try:
        with pytest.raises(ConfigError, match=f"{port}.*another host or port"):
            await serve(Path(model_path), host="127.0.0.1", port=port)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_directory_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=tmp_path.name):
        await serve(tmp_path, host="127.0.0.1", port=0)


async def test_a_checkpoint_is_served_with_weights_and_prompts_by_agent(
    model_path: str, tmp_path: Path
) -> None:
    run = WrittenRun(tmp_path / "run", model=model_path, agents=["writer"])
    checkpoint = run.checkpoint(
        3, writer=PromptTemplate(template="Sell it. " * 9, agents=("writer",), known="Write.")
    )
    shutil.copytree(model_path, checkpoint / "policies" / "trained")
    task, url = await _served(str(checkpoint))
    head = {"role": "system", "content": "Write."}
    body = {
        "model": "gpt-x",
        "messages": [head, {"role": "user", "content": "hi"}],
        "max_tokens": 2,
    }
    tokens: dict[str, int] = {}
    try:
        async with aiohttp.ClientSession() as session:
            for agent in ("writer", "planner"):
                place = url.replace("/v1", f"/agent/{agent}/v1/chat/completions")
                async with session.post(place, json=body) as response:
                    answer = await response.json()
                tokens[agent] = answer["usage"]["prompt_tokens"]
            async with session.get(f"{url}/models") as response:
                models = [row["id"] for row in (await response.json())["data"]]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert models == ["trained", "frozen"]
    assert tokens["writer"] > tokens["planner"] + 9


async def test_responses_are_served_to_the_sdk(model_path: str) -> None:
    """G11: `agl serve` takes both of OpenAI's forms, plain and streamed, from their own client."""
    openai = pytest.importorskip("openai")
    task, url = await _served(model_path)
    asked = {"model": Path(model_path).name, "input": "hi", "max_output_tokens": 4}
    try:
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            plain = await client.responses.create(**asked)
            streamed = await client.responses.create(**asked, stream=True)
            events = [event async for event in streamed]
            with pytest.raises(openai.NotFoundError, match="ask for"):
                await client.responses.create(**{**asked, "model": "gpt-x"})
            with pytest.raises(openai.BadRequestError, match="previous_response_id"):
                await client.responses.create(**asked, previous_response_id="resp_1")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert plain.output[0].role == "assistant"
    assert 0 < plain.usage.output_tokens <= 4
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")

"""New weights in a running server: every answer is wholly of one version, the one on record."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import pytest
from agl_vllm import VllmControl

from agl_core.errors import ConfigError, EngineError
from agl_core.types import Attempt, ModelCall
from tests.extras.vllm.tiny_model import RANK, Weights, make_adapter, make_model
from tests.extras.vllm.vllm_server import NAME, SAMPLED, VllmServer, counted
from tests.extras.vllm.vllm_site import FIGURES, TIMEOUT_S, Site

ASKING = 3
"""Clients that keep on asking."""
PROMPT = "What the weights of then computed of a prompt is of no use to those of now. " * 4
"""Long enough to be in the prefix cache."""
NEAR, FAR = 1e-3, 0.1
"""Differences of log-probabilities within one version, and between two."""


@pytest.fixture(scope="session")
def new(directory: Path) -> str:
    return make_model(directory / "new", seed=1)


@pytest.fixture(scope="session")
def adapters(directory: Path, server: VllmServer) -> dict[str, str]:
    """Name to directory, one each per version."""
    names = ["writer-v1", "writer-v2"]
    return {
        name: make_adapter(server.model, directory / name, seed=seed)
        for seed, name in enumerate(names, start=1)
    }


@pytest.fixture
async def restored(server: VllmServer, control: VllmControl) -> Any:
    yield
    await control.sync_weights(server.model)


@final
class Crowd:
    """Clients that ask without a pause, and say how many answers there were."""

    def __init__(self, site: Site, attempt: Attempt) -> None:
        self._site = site
        self._attempt = attempt
        self._answers = 0
        self._answered = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Crowd:
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(ASKING)]
        return self

    async def __aexit__(self, *exception: object) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def more(self, count: int) -> None:
        """Wait until there were so many answers more."""
        reaching = asyncio.create_task(self._reach(self._answers + count))
        done, _ = await asyncio.wait({reaching, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _reach(self, count: int) -> None:
        async with self._answered:
            await self._answered.wait_for(lambda: self._answers >= count)

    async def _ask(self, number: int) -> None:
        while True:
            await self._site.ask(
                self._attempt, PROMPT, max_tokens=16, ignore_eos=True, stream=number % 2 == 0
            )
            async with self._answered:
                self._answers += 1
                self._answered.notify_all()


def versions(calls: list[ModelCall], weights: dict[int, Weights]) -> dict[int, int]:
    """Answers by the version that their log-probabilities are of, which has to be one alone."""
    counts = dict.fromkeys(weights, 0)
    for call in calls:
        (choice,) = call.choices
        distances = {
            version: one.distance(call.prompt_token_ids, choice.token_ids, choice.logprobs)
            for version, one in weights.items()
        }
        near = [version for version, distance in distances.items() if distance < NEAR]
        far = [version for version, distance in distances.items() if distance > FAR]
        assert (len(near), len(far)) == (1, len(weights) - 1), (call.policy_version, distances)
        counts[near[0]] += 1
    return counts


async def seconds(change: Callable[[str], Awaitable[None]], directory: str) -> float:
    began = time.perf_counter()
    await change(directory)
    return round(time.perf_counter() - began, 3)


async def test_after_a_reload_answers_are_the_new_weights_and_recorded_so(
    site: Site, control: VllmControl, server: VllmServer, new: str, restored: None
) -> None:
    attempt = await site.attempt()
    async with Crowd(site, attempt) as crowd:
        await crowd.more(2 * ASKING)
        await site.gateway.pause()
        assert await site.gateway.drain(timeout_s=TIMEOUT_S) == 0
        took = await seconds(control.sync_weights, new)
        await site.serve(2)
        await site.gateway.resume()
        await crowd.more(2 * ASKING)
    calls = [call for call in await site.calls(attempt) if call.complete]
    weights = {1: Weights(server.model), 2: Weights(new)}
    for version in weights:
        served = [call for call in calls if call.policy_version == version]
        assert versions(served, weights)[version] == len(served) >= 2 * ASKING
    FIGURES["reload"] = {"first_s": took}


async def test_a_reload_amid_calls_gives_none_of_them_both_weights(
    site: Site, control: VllmControl, server: VllmServer, new: str, restored: None
) -> None:
    """With the gateway's door open: vLLM finishes what it has begun and holds what comes."""
    attempt = await site.attempt()
    took: list[float] = []
    async with Crowd(site, attempt) as crowd:
        for directory in (new, server.model, new, server.model):
            await crowd.more(ASKING)
            took.append(await seconds(control.sync_weights, directory))
        await crowd.more(ASKING)
    calls = [call for call in await site.calls(attempt) if call.complete]
    counts = versions(calls, {1: Weights(server.model), 2: Weights(new)})
    assert min(counts.values()) >= ASKING
    FIGURES["reload_amid_calls"] = {
        "seconds": took,
        "median_s": statistics.median(took),
        "answers": sum(counts.values()),
        "mixed": 0,
    }


async def test_an_adapter_of_its_own_name_per_version_needs_no_pause(
    site: Site, control: VllmControl, server: VllmServer, adapters: dict[str, str]
) -> None:
    first, second = adapters
    await control.load_adapter(first, adapters[first])
    await site.serve(1, model=first)
    attempt = await site.attempt()
    async with Crowd(site, attempt) as crowd:
        await crowd.more(2 * ASKING)
        began = time.perf_counter()
        await control.load_adapter(second, adapters[second])
        took = round(time.perf_counter() - began, 3)
        await site.serve(2, model=second)
        await crowd.more(3 * ASKING)
        await site.gateway.pause()
        assert await site.gateway.drain(timeout_s=TIMEOUT_S) == 0
        await control.unload_adapter(first)
        await site.gateway.resume()
        await crowd.more(ASKING)
    models = await site.backend.models()
    await control.unload_adapter(second)
    assert (first in models, second in models) == (False, True)
    calls = [call for call in await site.calls(attempt) if call.complete]
    weights = {
        version: Weights(server.model, adapters[name])
        for version, name in enumerate(adapters, start=1)
    }
    for version in weights:
        served = [call for call in calls if call.policy_version == version]
        assert versions(served, weights)[version] == len(served) >= 2 * ASKING
    FIGURES["adapter_amid_calls"] = {"seconds": took, "answers": len(calls), "mixed": 0}


async def test_an_adapter_outlives_new_weights_below_it(
    site: Site,
    control: VllmControl,
    server: VllmServer,
    adapters: dict[str, str],
    new: str,
    restored: None,
) -> None:
    name, *_ = adapters
    await control.load_adapter(name, adapters[name])
    await site.serve(1, model=name)
    attempt = await site.attempt()
    await site.ask(attempt, PROMPT, max_tokens=8)
    await control.sync_weights(new)
    await site.ask(attempt, PROMPT, max_tokens=8)
    await control.unload_adapter(name)
    before, after = await site.calls(attempt)
    weights = {
        1: Weights(server.model, adapters[name]),
        2: Weights(new, adapters[name]),
        3: Weights(new),
    }
    assert versions([before], weights)[1] == 1
    assert versions([after], weights)[2] == 1


async def test_weights_that_cannot_be_loaded_leave_the_server_paused_until_others_can(
    site: Site, control: VllmControl, server: VllmServer, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match=r"HTTP 500.*The server stays paused"):
        await control.sync_weights(str(tmp_path / "nowhere"))
    async with site.session.get(f"{server.url}/is_paused") as answer:
        assert await answer.json() == {"is_paused": True}
    await control.sync_weights(server.model)
    attempt = await site.attempt()
    await site.ask(attempt, PROMPT, max_tokens=8)
    assert versions(await site.calls(attempt), {1: Weights(server.model)}) == {1: 1}


async def test_weights_without_the_servers_head_are_refused(
    site: Site, control: VllmControl, server: VllmServer, tmp_path: Path
) -> None:
    tied = make_model(tmp_path / "tied", seed=2, tied=True)
    with pytest.raises(ConfigError, match=r"no lm_head\.weight"):
        await control.sync_weights(tied)
    attempt = await site.attempt()
    await site.ask(attempt, PROMPT, max_tokens=8)
    assert versions(await site.calls(attempt), {1: Weights(server.model)}) == {1: 1}


async def test_adapters_that_cannot_be_served_are_refused_in_vllms_words(
    site: Site, control: VllmControl, server: VllmServer, adapters: dict[str, str], tmp_path: Path
) -> None:
    name, *_ = adapters
    await control.load_adapter(name, adapters[name])
    with pytest.raises(EngineError, match="already been loaded"):
        await control.load_adapter(name, adapters[name])
    with pytest.raises(EngineError, match="No adapter found"):
        await control.load_adapter("nowhere", str(tmp_path / "nowhere"))
    large = make_adapter(server.model, tmp_path / "large", seed=3, rank=2 * RANK)
    with pytest.raises(EngineError, match=r"rank 16 is greater than max_lora_rank 8"):
        await control.load_adapter("large", large)
    await control.unload_adapter(name)
    await control.unload_adapter(name)
    assert await site.backend.models() == [NAME]


async def test_an_endpoint_that_vllm_does_not_have_names_what_it_needs(server: VllmServer) -> None:
    async with VllmControl(f"{server.url}/elsewhere") as control:
        with pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE=1"):
            await control.pause()
        with pytest.raises(ConfigError, match="--enable-lora"):
            await control.unload_adapter("a")


async def test_half_an_answer_that_somebody_else_had_vllm_give_up_is_tried_again(
    site: Site, control: VllmControl
) -> None:
    before = await site.metrics()
    attempt = await site.attempt()
    headers = site.world.headers(attempt)
    body = {"max_tokens": 480, "ignore_eos": True}
    asking = asyncio.create_task(_status(site, headers, body))
    sampled = counted(before, SAMPLED)
    await site.until(lambda metrics: counted(metrics, SAMPLED) > sampled + 4)
    status, _ = await site.post("/pause?mode=abort")
    assert status == 200
    assert await asking == (502, "true")
    await control.resume()
    (call,) = await site.calls(attempt)
    assert not call.complete
    assert "aborted its answer" in call.error


async def _status(site: Site, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, str]:
    async with site.world.post(headers, **body) as answer:
        return answer.status, answer.headers["x-should-retry"]

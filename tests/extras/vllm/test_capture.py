"""What the gateway records of vLLM's answers is what vLLM sampled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from agl_budget import PromptBudget
from agl_remote import HttpEngine, HttpOptions

import agl_core as agl
from agl_core.interfaces import Capabilities
from agl_core.store._sqlite import SqliteStore
from agl_core.types import FailureKind, Policy, RolloutQuery
from tests.extras.vllm.tiny_model import CONTEXT_LENGTH, Weights, make_tokenizer
from tests.extras.vllm.vllm_server import NAME, SAMPLED, VllmServer, counted
from tests.extras.vllm.vllm_site import FIGURES, TIMEOUT_S, TOOLS, Site

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "héllo 你好 👋"},
]
PRINTABLE = [*range(94), 258]
"""Ids of ASCII's printable characters, and the end: any sequence of them is whole text."""
CLOSE = 1e-3
"""Two programs that compute with float32 differ by less."""


@pytest.fixture(scope="session")
def old(server: VllmServer) -> Weights:
    return Weights(server.model)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("tools", [[], TOOLS], ids=["plain", "tools"])
async def test_tokens_and_logprobs_are_the_servers(
    site: Site, old: Weights, stream: bool, n: int, tools: Any
) -> None:
    attempt = await site.attempt()
    more = {"tools": tools} if tools else {}
    asked = {"messages": MESSAGES, "max_tokens": 12, "allowed_token_ids": PRINTABLE, **more}
    answer = await site.ask(attempt, stream=stream, n=n, **asked)
    (call,) = await site.calls(attempt)
    assert (call.complete, call.error, len(call.choices)) == (True, "", n)
    assert call.prompt_token_ids.tolist() == await site.prompt_of(MESSAGES, **more)
    texts = _texts(answer, n)
    tokenizer = make_tokenizer()
    for choice in call.choices:
        assert 0 < len(choice.token_ids) == len(choice.logprobs) <= 12
        assert tokenizer.decode(choice.token_ids.tolist(), skip_special_tokens=True) == choice.text
        assert choice.text == texts[choice.index]
        distance = old.distance(call.prompt_token_ids, choice.token_ids, choice.logprobs)
        assert distance < CLOSE
        farthest = max(FIGURES.get("logprob_distance", 0.0), distance)
        FIGURES["logprob_distance"] = farthest
    assert len({tuple(choice.token_ids) for choice in call.choices}) == n


async def test_logprobs_are_those_before_temperature(site: Site, old: Weights) -> None:
    """Which the probe says, so that nobody takes them for the distribution sampled from."""
    found = await site.gateway.probe("trained")
    assert found == Capabilities(token_ids=True, stream_token_ids=True, logprobs="raw")
    attempt = await site.attempt()
    await site.ask(attempt, "hi", max_tokens=12, temperature=0.5)
    (call,) = await site.calls(attempt)
    (choice,) = call.choices
    assert call.logprobs_mode == "raw"
    assert old.distance(call.prompt_token_ids, choice.token_ids, choice.logprobs) < CLOSE


async def test_an_end_of_sequence_counts(site: Site, old: Weights) -> None:
    attempt = await site.attempt()
    await site.ask(attempt, "hi", allowed_token_ids=[258], max_tokens=4)
    (call,) = await site.calls(attempt)
    (choice,) = call.choices
    assert (choice.token_ids.tolist(), choice.text, choice.finish_reason) == ([258], "", "stop")
    assert old.distance(call.prompt_token_ids, [258], choice.logprobs) < CLOSE


async def test_the_engine_finds_the_model_and_what_it_can(site: Site) -> None:
    engine = HttpEngine(HttpOptions(base_url=site.server.base_url))
    policy = Policy(name="trained", agents=("writer",), trainable=True, model="auto")
    await engine.start([policy])
    backend: Any = engine.backend("trained")
    await site.gateway.route(policy, backend)
    assert (await site.gateway.probe("trained")).token_ids
    assert backend.model == NAME
    assert await backend.context_length() == CONTEXT_LENGTH
    assert await backend.detokenize(make_tokenizer().encode("hi")) == "hi"
    await engine.stop()


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["plain", "tools"])
async def test_the_gateway_counts_what_the_server_then_reads(site: Site, tools: Any) -> None:
    attempt = await site.attempt()
    more = {"tools": tools} if tools else {}
    await site.ask(attempt, messages=MESSAGES, max_tokens=1, **more)
    headers = site.world.headers(attempt)
    path = "/v1/tokenize"
    async with site.world.post(headers, path=path, messages=MESSAGES, **more) as answer:
        status, told = answer.status, await answer.json()
    (call,) = await site.calls(attempt)
    assert status == 200, told
    assert told == {"count": len(call.prompt_token_ids), "max_model_len": CONTEXT_LENGTH}


async def test_what_the_template_refuses_is_told_by_both(site: Site) -> None:
    attempt = await site.attempt()
    headers = site.world.headers(attempt)
    messages = [{"role": "developer", "content": "hi"}]
    async with site.world.post(headers, path="/v1/tokenize", messages=messages) as answer:
        status, told = answer.status, await answer.json()
    assert (status, told["error"]["code"]) == (400, "prompt_refused")
    assert "Nobody develops here" in told["error"]["message"]
    async with site.world.post(headers, messages=messages) as answer:
        assert answer.status == 400
    (call,) = await site.calls(attempt)
    assert "Nobody develops here" in call.error


async def ask(messages: list[dict[str, Any]], **body: Any) -> str:
    llm = agl.current().llm
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
        answer = await client.post(
            f"{llm.base_url}/chat/completions",
            headers={"authorization": f"Bearer {llm.api_key}"},
            json={"model": "any", "messages": messages, **body},
        )
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


async def too_long(task: agl.Task) -> str:
    with agl.agent_scope("writer"):
        return await ask([{"role": "user", "content": "x" * CONTEXT_LENGTH}])


async def cut_to_fit(task: agl.Task) -> str:
    with agl.agent_scope("writer"):
        long = [{"role": "user", "content": "x" * 300}, {"role": "assistant", "content": "y" * 300}]
        messages = await PromptBudget(400).afit([*long, {"role": "user", "content": "hi"}])
        assert await PromptBudget(400).afit(messages) == messages
        return await ask(messages, max_tokens=4)


async def beyond_help(task: agl.Task) -> str:
    with agl.agent_scope("writer"):
        messages = await PromptBudget(20).afit([{"role": "system", "content": "x" * 300}])
        return await ask(messages)


@pytest.mark.parametrize(
    ("agent", "failed"),
    [
        (too_long, {"context_overflow": 1}),
        (cut_to_fit, {}),
        (beyond_help, {"context_overflow": 1}),
    ],
)
def test_a_context_that_overflows_is_known_by_vllms_words(
    server: VllmServer, tmp_path: Path, agent: Any, failed: dict[str, int]
) -> None:
    evaluation = agl.evaluate(
        agent,
        [{"input": 1}],
        model=server.base_url,
        reward=lambda task, output, attempt: 1.0,
        config={
            "name": "run",
            "directory": str(tmp_path),
            "rollout": {"timeout_s": TIMEOUT_S},
        },
    )
    assert evaluation.failed == failed
    if agent is too_long:
        failure, error = asyncio.run(_failure(next(tmp_path.rglob("store.db"))))
        assert failure.kind is FailureKind.CONTEXT_OVERFLOW
        assert "maximum context length is 512 tokens" in error


async def test_a_client_that_leaves_ends_the_answer(site: Site) -> None:
    """The server's own metrics tell: nothing runs any more, and few tokens were sampled."""
    before = counted(await site.metrics(), SAMPLED)
    attempt = await site.attempt()
    headers = site.world.headers(attempt)
    async with site.world.post(headers, max_tokens=480, ignore_eos=True, stream=True) as answer:
        await answer.content.readuntil(b"\n\n")
        await site.until(lambda metrics: counted(metrics, SAMPLED) > before)
    after = await site.until(lambda metrics: counted(metrics, "num_requests_running") == 0)
    assert counted(after, SAMPLED) < before + 480
    (call,) = await site.calls(attempt)
    assert not call.complete
    assert "the client closed its connection" in call.error


def _texts(answer: dict[str, Any], n: int) -> list[str]:
    """Of a whole answer's choices, or of a stream's."""
    texts = [""] * n
    for payload in answer.get("chunks", [answer]):
        for choice in payload["choices"]:
            message = choice.get("message") or choice.get("delta")
            texts[choice["index"]] += message.get("content") or ""
    return texts


async def _failure(path: Path) -> tuple[Any, str]:
    store = SqliteStore(path)
    await store.open()
    try:
        (rollout,) = await store.rollouts(RolloutQuery())
        spans = await store.spans([rollout.id])
    finally:
        await store.close()
    (error,) = [span.call.error for span in spans if span.call is not None]
    return rollout.attempt.failure, error

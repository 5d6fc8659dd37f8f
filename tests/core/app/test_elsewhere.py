"""Programs whose clients were made before the run: what of their requests reaches the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import httpx
import pytest
from agl_doctor._diagnose import diagnose
from agl_testing.fake_openai import FakeOpenAI

import agl_core as agl
from agl_core.errors import ConfigError, TrainingError
from agl_core.types.run import evaluation_line
from tests.core.app.conftest import Bench, says_yes, speak

openai = pytest.importorskip("openai")

ASK: Any = {"model": "gpt-x", "messages": [{"role": "user", "content": "Well?"}]}


class Program:
    """Two agents with clients of their own, as at import."""

    def __init__(self, base_url: str) -> None:
        self.llm = openai.OpenAI(base_url=base_url, api_key="the-user's-own")

    def run(self, task: agl.Task) -> str | None:
        self.ask("planner")
        return self.ask("writer")

    def ask(self, agent: str) -> str | None:
        with agl.agent_scope(agent):
            return self.llm.chat.completions.create(**ASK).choices[0].message.content


@pytest.fixture
def provider() -> Any:
    with FakeOpenAI(lambda body: "from the provider") as server:
        yield server


@pytest.fixture
def program(provider: FakeOpenAI) -> Any:
    program = Program(provider.base_url)
    yield program
    program.llm.close()


def address(provider: FakeOpenAI) -> str:
    return provider.base_url.removeprefix("http://").removesuffix("/v1")


def test_a_client_made_at_import_is_trained(
    bench: Bench, program: Program, provider: FakeOpenAI
) -> None:
    """G3, C2: the trained agent's requests are rerouted, the other's are sent and counted."""
    report = bench.train({"agent": program.run}, train__steps=1)
    (batch,) = bench.engine.batches
    assert len(batch.call_ids) == 8
    assert len(provider.log) == 8
    assert report.lost[f"sent_elsewhere_by_planner_to_{address(provider)}"] == 8


def test_a_client_made_at_import_is_evaluated(
    bench: Bench, program: Program, provider: FakeOpenAI
) -> None:
    """G3: an evaluation asks the model that is evaluated."""

    def run_agent(task: agl.Task) -> str | None:
        return program.ask("writer")

    bench.train({"agent": run_agent, "val_tasks": [{"input": 1}]}, train__steps=1)
    assert provider.log == []


def test_requests_elsewhere_can_be_forbidden_for_a_run(
    bench: Bench, program: Program, provider: FakeOpenAI
) -> None:
    """C2: `capture.elsewhere`."""
    with pytest.raises(TrainingError, match=r"capture.*allow_hosts"):
        bench.train({"agent": program.run}, train__steps=1, capture__elsewhere="refuse")
    assert provider.log == []


def in_a_bare_thread(task: agl.Task) -> str:
    """A thread without the context of the attempt; its error is swallowed."""

    def ask() -> None:
        with contextlib.suppress(openai.APIError), openai.OpenAI(max_retries=0) as client:
            client.chat.completions.create(**ASK)

    with agl.agent_scope("writer"):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    return "yes"


def test_an_evaluation_states_attempts_without_calls(bench: Bench) -> None:
    """C9: every call was refused, and the program answered without them."""
    app = bench.app({"agent": in_a_bare_thread, "reward": says_yes})
    evaluation = asyncio.run(app.evaluate())
    assert evaluation.score.mean == 1.0
    assert evaluation.lost == {"attempts_without_calls": 4, "calls_without_identity": 4}
    assert "attempts_without_calls=4" in evaluation_line(evaluation)


def test_doctor_warns_about_requests_of_no_attempt(bench: Bench) -> None:
    """C3, C9: by cause, with the fix; and about attempts without calls."""

    def half(task: agl.Task) -> str:
        if task.input % 2:
            return in_a_bare_thread(task)
        with agl.agent_scope("writer"), openai.OpenAI() as client:
            return client.chat.completions.create(**ASK).choices[0].message.content or ""

    app = bench.app({"agent": half, "reward": says_yes}, train__tasks_per_step=4)
    diagnosis = asyncio.run(diagnose(app, tasks=4, samples=2))
    found = {finding.check: finding for finding in diagnosis.findings}
    assert found["requests.lost"].figures == {
        "cause": "calls_without_identity",
        "counts": {"calls_without_identity": 4},
    }
    assert "copy_context" in found["requests.lost"].fix
    assert found["attempts.calls"].figures == {"attempts": 8, "silent": 4}
    assert found["losses"].severity == "ok"


def test_a_run_whose_calls_have_no_agent_says_so(bench: Bench) -> None:
    """D8: such as with the tracing of OpenAI Agents disabled."""

    def nameless(task: agl.Task) -> str:
        with openai.OpenAI() as client:
            return client.chat.completions.create(**ASK).choices[0].message.content or ""

    with pytest.raises(ConfigError, match="only calls without an agent"):
        bench.train({"agent": nameless}, train__steps=1)


def test_a_frozen_agent_that_gives_up_waiting_stops_nothing(bench: Bench) -> None:
    """C4: `wait_for` around a frozen agent's call, and a pool timeout, both handled."""

    async def impatient(task: agl.Task) -> str:
        llm = agl.current().llm
        key = {"authorization": f"Bearer {llm.api_key}"}
        none = httpx.Limits(max_connections=0)
        async with httpx.AsyncClient(headers=key, limits=none, timeout=0.01) as client:
            for agent in ("planner", "writer"):
                with agl.agent_scope(agent), contextlib.suppress(httpx.PoolTimeout):
                    await client.post(f"{llm.base_url}/chat/completions", json=ASK)
        return await speak("writer", "write")

    report = bench.train({"agent": impatient}, train__steps=1)
    assert report.lost["calls_unsent"] == 16
    assert len(bench.engine.batches[0].call_ids) == 8

"""One async client for a whole process, as modules make them, over several runs."""

from __future__ import annotations

import asyncio
import gc
import warnings

import openai
import pytest
from agl_testing.fake_openai import FakeOpenAI

import agl_core as agl
from tests.installed import INSTALLED

CLIENT = openai.AsyncOpenAI(
    base_url="http://127.0.0.1:9/v1", api_key="the-user's-own", max_retries=0
)
ROWS = [{"id": str(number), "input": f"question {number}"} for number in range(4)]


async def elsewhere(task):
    """As at import: the run is not known to the client."""
    return await ask(CLIENT, task)


async def of_the_run(task):
    """The connections are those of the module's client."""
    llm = agl.current().llm
    own = CLIENT.with_options(base_url=llm.base_url, api_key=llm.api_key)
    return await ask(own, task)


async def ask(client, task):
    messages = [{"role": "user", "content": task.input}]
    with agl.agent_scope("writer"):
        answer = await client.chat.completions.create(model="any", messages=messages)
    return answer.choices[0].message.content


def on_a_loop_of_its_own(program):
    """A plain function, whose every attempt has another event loop."""

    def run_agent(task):
        return asyncio.run(program(task))

    return run_agent


@pytest.fixture
def evaluate(tmp_path, monkeypatch):
    """``evaluate(agent, name)``, as a run of its own."""
    others = [name for name in INSTALLED.split(",") if name != "openai"]
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", ",".join(others))
    with FakeOpenAI(lambda body: "answered") as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # nobody closes the client's connections

        def run(agent, name, **overrides):
            return agl.evaluate(
                agent,
                ROWS,
                agents=["writer"],
                reward=lambda task, output, attempt: float(output == "answered"),
                model=model.base_url,
                config={"name": name, "directory": str(tmp_path)},
                overrides=overrides,
                progress=False,
            )

        yield run
        gc.collect()


@pytest.mark.parametrize("agent", [elsewhere, of_the_run])
def test_a_client_of_a_module_serves_two_runs(evaluate, agent):
    """D2: all attempts succeed in both; none fails with "Event loop is closed"."""
    for name in ("first", "second"):
        evaluation = evaluate(agent, name)
        assert (evaluation.score.n, evaluation.score.mean) == (4, 1.0)
        assert (evaluation.failed, evaluation.lost) == ({}, {})


@pytest.mark.parametrize("program", [elsewhere, of_the_run])
def test_it_also_serves_attempts_with_loops_of_their_own(evaluate, program):
    """D2: its connections belong to the closed loop of the attempt before.

    Of a request that is written to such a connection both tries may arrive: the first is counted.
    """
    for name in ("first", "second"):
        evaluation = evaluate(on_a_loop_of_its_own(program), name, **{"rollout.concurrency": 1})
        assert (evaluation.score.n, evaluation.score.mean) == (4, 1.0)
        assert evaluation.failed == {}
        assert set(evaluation.lost) <= {"superseded_tries"}

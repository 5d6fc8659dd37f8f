"""A run small enough for many processes: two agents, the engine of three words, in one file.

It is the agent program, the tasks, the reward and the plugin at once.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

import agl_core as agl
from agl_core.plugins import hookimpl

tasks = [{"id": f"t{number}", "input": number} for number in range(4)]


async def run_agent(task: agl.Task) -> str:
    """A frozen planner, then a trained writer."""
    async with httpx.AsyncClient(verify=False, timeout=60) as client:
        await _speak(client, "planner", f"plan {task.input}")
        return await _speak(client, "writer", f"write {task.input}")


async def hang(task: agl.Task) -> None:
    await asyncio.Event().wait()


async def blocks(task: agl.Task) -> str:
    """A synchronous program in a coroutine function, with a server that is slow to answer.

    After an await, further attempts begin in the process while one blocks it.
    """
    if agl.current().rollout.metadata["sample"] % 2:
        await asyncio.sleep(0)
    return _sync_program(task)


def _sync_program(task: agl.Task) -> str:
    import fcntl

    slow = Path(os.environ["SLOW_SERVER"])
    with slow.open() as file, httpx.Client(verify=False, timeout=60) as client:
        fcntl.flock(file, fcntl.LOCK_SH)
        llm = agl.current().llm
        with agl.agent_scope("writer"):
            answer = client.post(**_request(llm, f"write {task.input}"))
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


async def looks_around(task: agl.Task) -> str:
    """Leaves what it finds in its process's environment."""
    folder = Path(os.environ["LOOKED_AROUND"])
    listing = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", _ENVIRONMENT], capture_output=True, check=True
    )
    here = "\n".join(f"{name}={value}" for name, value in os.environ.items())
    (folder / agl.current().attempt.id).write_text(here + listing.stdout.decode())
    return await run_agent(task)


_ENVIRONMENT = "import os; print(dict(os.environ))"


async def long_answer(task: agl.Task) -> str:
    """More than the store keeps."""
    await run_agent(task)
    return "x" * 2_000_000


async def _speak(client: httpx.AsyncClient, agent: str, text: str) -> str:
    llm = agl.current().llm
    with agl.agent_scope(agent):
        answer = await client.post(**_request(llm, text))
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


def _request(llm: agl.LLM, text: str) -> dict[str, Any]:
    return {
        "url": f"{llm.base_url}/chat/completions",
        "headers": {"authorization": f"Bearer {llm.api_key}"},
        "json": {"model": "any", "messages": [{"role": "user", "content": text}]},
    }


def reward(task: agl.Task, output: str, attempt: agl.AttemptRecord) -> float:
    return float(output == "yes")


@hookimpl
def agl_register_engines(register):
    register("bandit", f"{__name__}:make_engine")


@hookimpl
def agl_register_losses(register):
    register("bandit.policy_gradient", f"{__name__}:make_engine")


def make_engine(options, setup):
    from tests.core.bandit_engine import BanditEngine

    return BanditEngine(setup)

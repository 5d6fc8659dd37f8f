"""The canonical scenario in the toy framework."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from agl_testing.scenario import (
    JUDGE,
    PLANNER,
    SYSTEM,
    TOOL,
    TOOL_RESULT,
    WRITER,
    Job,
    ScenarioProgram,
)
from agl_testing.toy_framework import Agent, Endpoint, Tool

__all__ = ["ToyProgram"]


class ToyProgram(ScenarioProgram):
    """The scenario with agents of `agl_testing.toy_framework`."""

    def run(self, job: Job) -> str:
        return _writer(job).run(_planner(job).run(job.question))

    async def arun(self, job: Job) -> str:
        return await _writer(job).arun(await _planner(job).arun(job.question))

    def stream(self, job: Job) -> str:
        return _writer(job).run(_planner(job).run(job.question, stream=True), stream=True)

    async def astream(self, job: Job) -> str:
        plan = await _planner(job).arun(job.question, stream=True)
        return await _writer(job).arun(plan, stream=True)

    def structured(self, job: Job) -> Mapping[str, Any]:
        writer = _writer(job)
        writer.extra = {"response_format": {"type": "json_object"}}
        return json.loads(writer.run(job.question))

    async def parallel(self, job: Job) -> Sequence[str]:
        planner = Agent(PLANNER, job.model(PLANNER), _endpoint(job), SYSTEM)
        agents = (planner, _writer(job))
        return await asyncio.gather(*(agent.arun(job.question) for agent in agents))

    def delegate(self, job: Job) -> str:
        return _planner(job, Tool(TOOL, lambda item: _writer(job).run(item))).run(job.question)

    def judge(self, job: Job) -> str:
        def review(item: str) -> str:
            endpoint = _endpoint(job)
            body = {"model": job.model(JUDGE), "messages": [{"role": "user", "content": item}]}
            answer = httpx.post(
                endpoint.url, json=body, headers=endpoint.headers, timeout=endpoint.timeout_s
            )
            return answer.raise_for_status().json()["choices"][0]["message"]["content"]

        return _planner(job, Tool(TOOL, review)).run(job.question)

    def fail(self, job: Job, error: Exception) -> str:
        def broken(item: str) -> str:
            del item
            raise error

        return _planner(job, Tool(TOOL, broken)).run(job.question)


def _endpoint(job: Job) -> Endpoint:
    return Endpoint(job.base_url, job.api_key)


def _planner(job: Job, tool: Tool | None = None) -> Agent:
    tool = tool or Tool(TOOL, lambda _: TOOL_RESULT)
    return Agent(PLANNER, job.model(PLANNER), _endpoint(job), SYSTEM, tools=(tool,))


def _writer(job: Job) -> Agent:
    return Agent(WRITER, job.model(WRITER), _endpoint(job), SYSTEM)

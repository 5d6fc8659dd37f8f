"""A doctor whose engine serves from a fake model server that the test can break."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agl_doctor._diagnose import Diagnosis, diagnose
from agl_endpoints import HttpBackend
from agl_testing.fake_openai import FakeOpenAI, FakeOptions

import agl_core as agl
from agl_core._builtin import load_plugins
from agl_core.app import App, Inputs
from agl_core.config.loader import resolve
from agl_core.interfaces import Engine
from agl_core.plugins import hookimpl
from agl_core.plugins._manager import Source
from agl_core.types import Finding
from tests.core.app.conftest import ask

_SERVERS: dict[str, Any] = {}


class ServedEngine(Engine):
    """Serves every policy from the fake server, as an engine whose servers run elsewhere."""

    trains = True

    def __init__(self, options: Any, setup: Any) -> None:
        self.backends: dict[str, HttpBackend] = {}

    async def start(self, policies: Any) -> None:
        for policy in policies:
            url = _SERVERS["server"].base_url
            self.backends[policy.name] = HttpBackend(url, model="fake-model")

    async def stop(self) -> None:
        for backend in self.backends.values():
            await backend.close()

    def backend(self, policy: str) -> HttpBackend:
        return self.backends[policy]


class Clinic:
    """Runs the doctor on an agent; keeps what it found."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.options: dict[str, Any] = {"detokenize": True, "stable": True, "max_model_len": 10_000}
        self.script: Any = None
        self.server: FakeOpenAI | None = None
        self.plugins: list[Any] = []
        self.inputs: dict[str, Any] = {}
        self._stack = stack

    def serve(self) -> FakeOpenAI:
        if self.server is None:
            fake = FakeOpenAI(self.script, FakeOptions(**self.options))
            self.server = self._stack.enter_context(fake)
        _SERVERS["server"] = self.server
        return self.server

    def app(self, agent: Any, **settings: Any) -> App:
        self.serve()
        config = resolve(
            {
                "name": "trial",
                "directory": str(self.directory),
                "agents": ["writer"],
                "model": "fake-model",
                "store": {"name": "memory"},
                "engine": {"name": "served"},
                "algorithm": {"name": "grpo", "group_size": 2},
                "rollout": {"timeout_s": 600.0},
            },
            [f"{key.replace('__', '.')}={value}" for key, value in settings.items()],
        )
        plugins = load_plugins()
        engines = SimpleNamespace(
            agl_register_engines=hookimpl(agl_register_engines),
            agl_register_losses=hookimpl(agl_register_losses),
        )
        plugins.register(engines, Source(name="served"))
        for plugin in self.plugins:
            plugins.register(plugin, Source(name=plugin.name))
        given = {
            "agent": agent,
            "reward": alternating(),
            "tasks": [{"input": n} for n in range(4)],
            **self.inputs,
        }
        return App(config, Inputs(**given), plugins=plugins)

    def diagnose(self, agent: Any, *, tasks: int = 2, **settings: Any) -> Diagnosis:
        return asyncio.run(diagnose(self.app(agent, **settings), tasks=tasks))

    def find(self, agent: Any, check: str, **settings: Any) -> Finding:
        """The one finding of a check."""
        return only(self.diagnose(agent, **settings), check)


def only(diagnosis: Diagnosis, check: str) -> Finding:
    found = [finding for finding in diagnosis.findings if finding.check == check]
    assert len(found) == 1, [(f.check, f.severity, f.measured) for f in diagnosis.findings]
    return found[0]


def agl_register_engines(register: Any) -> None:
    register("served", f"{__name__}:ServedEngine")


def agl_register_losses(register: Any) -> None:
    register("served.policy_gradient", f"{__name__}:ServedEngine")


def alternating() -> Any:
    """A reward that always differs within a group of two."""

    def reward(task: agl.Task, output: Any, attempt: agl.AttemptRecord) -> float:
        return float(attempt.rollout.metadata["sample"])

    return reward


async def writer(task: agl.Task) -> str:
    """One call of one agent."""
    with agl.agent_scope("writer"):
        return (await ask(f"write {task.id} {agl.current().rollout.id}"))["content"]


@pytest.fixture
def clinic(tmp_path: Path) -> Iterator[Clinic]:
    with ExitStack() as stack:
        yield Clinic(tmp_path, stack)

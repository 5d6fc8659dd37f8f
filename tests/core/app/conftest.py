"""Whole runs in one process with an engine small enough to check by hand."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import agl_core as agl
from agl_core._builtin import load_plugins
from agl_core.app import App, Inputs
from agl_core.config.loader import resolve
from agl_core.plugins._manager import Source
from tests.core.bandit_engine import BanditEngine


async def ask(messages: Any, **body: Any) -> dict[str, Any]:
    """One model call of whoever speaks, over real HTTP; returns the answer's message.

    A text stands for a user's message.
    """
    llm = agl.current().llm
    text = messages
    given = [{"role": "user", "content": text}] if isinstance(text, str) else messages
    async with httpx.AsyncClient(verify=False, timeout=600) as client:
        answer = await client.post(
            f"{llm.base_url}/chat/completions",
            headers={"authorization": f"Bearer {llm.api_key}"},
            json={"model": "any", "messages": given, **body},
        )
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]


async def speak(agent: str, text: str) -> str:
    """One model call of `agent`."""
    with agl.agent_scope(agent):
        return (await ask(text))["content"]


async def two_agents(task: agl.Task) -> str:
    """A frozen planner and a trained writer."""
    await speak("planner", f"plan {task.id}")
    return await speak("writer", f"write {task.id}")


def says_yes(task: agl.Task, output: Any, attempt: agl.AttemptRecord) -> float:
    return float(output == "yes")


class Bench:
    """Builds apps whose engine is a `BanditEngine` that the test can look into."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.engines: list[BanditEngine] = []
        self.engine_options: dict[str, Any] = {}
        self.engine_class: type[BanditEngine] | None = None
        self.sections: dict[str, Any] = {}
        """Sections of the configuration that are added to, or replace, the ones below."""
        self.plugins: list[Any] = []

    @property
    def engine(self) -> BanditEngine:
        return self.engines[-1]

    def app(
        self, inputs: dict[str, Any] | None = None, observers: Sequence[Any] = (), **settings: Any
    ) -> App:
        given = {
            "agent": two_agents,
            "reward": says_yes,
            "tasks": [{"input": n} for n in range(4)],
            **(inputs or {}),
        }
        config = resolve(
            {
                "name": "bench",
                "directory": str(self.directory),
                "agents": ["writer"],
                "model": "bandit",
                "store": {"name": "memory"},
                "engine": {"name": "bandit"},
                "algorithm": {"name": "reinforce", "lr": 1.0, "group_size": 4},
                "train": {"steps": 2, "tasks_per_step": 2},
                "rollout": {"concurrency": 8, "timeout_s": 600.0},
                **self.sections,
            },
            [f"{key.replace('__', '.')}={value}" for key, value in settings.items()],
        )
        plugins = load_plugins()
        plugins.register(self._plugin(), Source(name="bandit"))
        for number, plugin in enumerate(self.plugins):
            plugins.register(plugin, Source(name=f"more-{number}"))
        return App(config, Inputs(**given), plugins=plugins, observers=observers)

    def train(self, inputs: dict[str, Any] | None = None, **settings: Any) -> agl.Report:
        return asyncio.run(self.app(inputs, **settings).train())

    def _plugin(self) -> Any:
        def make(options: Any, setup: Any) -> BanditEngine:
            made = (self.engine_class or BanditEngine)(setup, **self.engine_options)
            self.engines.append(made)
            return self.engines[-1]

        from agl_core.plugins import hookimpl

        _FACTORIES["make"] = make

        @hookimpl
        def agl_register_engines(register: Callable[..., None]) -> None:
            register("bandit", f"{__name__}:make_engine")

        @hookimpl
        def agl_register_losses(register: Callable[..., None]) -> None:
            register("bandit.policy_gradient", f"{__name__}:make_engine")

        return SimpleNamespace(
            agl_register_engines=agl_register_engines, agl_register_losses=agl_register_losses
        )


_FACTORIES: dict[str, Any] = {}


def make_engine(options: Any, setup: Any) -> BanditEngine:
    return _FACTORIES["make"](options, setup)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def renews_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lead of ten minutes is renewed every 0.1 s: seen to live, and kept through any delay."""
    monkeypatch.setattr("agl_core.app._components._RENEWALS_PER_LEASE", 6_000)

"""The tuner over a real store, gateway and runner, with a program of two agents and a scripted model.

The model uses a wanted word of `prompt_world` if the writer's prompt has it, or else by chance, which
depends on the seed of the call. Each of its prompts names the task's item.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256

import httpx
import msgspec
from agl_testing._prompt_editors import editors
from agl_testing.prompt_world import HARMFUL, SCRIPTED, WANTED, PromptWorld, WorldSettings
from agl_tuning._tuner import PromptTuner

import agl_core
from agl_core._builtin import load_plugins
from agl_core.app._components import run_alongside
from agl_core.app.parts import gateway_server, make_integrations
from agl_core.config.loader import resolve
from agl_core.gateway import GatewayOptions
from agl_core.interfaces import Backend
from agl_core.runner import NamedReward, Runner, RunnerOptions, Scorer
from agl_core.store import MemoryStore, SqliteStore
from agl_core.tracing import attach
from agl_core.training import RolloutSource, TuningSetup
from agl_core.types import (
    LLM,
    Losses,
    Policy,
    Resources,
    RolloutQuery,
    RolloutStatus,
    Score,
    Task,
)
from tests.core.bandit_engine import BanditReply

WRITER = "<prompt>Answer the question about {item} in one line.</prompt>"
"""The writer's prompt, as the program sends it."""
PLANNER = "Plan an answer about {item}."
ITEMS = (
    "tea",
    "rice",
    "figs",
    "salt",
    "corn",
    "oats",
    "kale",
    "soap",
    "wine",
    "milk",
    "eggs",
    "ham",
)


def tasks(first, count):
    """Return tasks with different items, numbered from `first`."""
    return [
        Task(id=f"task-{number}", input={"item": f"{ITEMS[number % 12]}{number}", "number": number})
        for number in range(first, first + count)
    ]


async def ask(agent, head, text, **body):
    """Make one model call of an agent."""
    llm = agl_core.current().llm
    messages = [{"role": "system", "content": head}] if head else []
    with agl_core.agent_scope(agent):
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.post(
                f"{llm.base_url}/chat/completions",
                headers={"authorization": f"Bearer {llm.api_key}"},
                json={
                    "model": "any",
                    "messages": [*messages, {"role": "user", "content": text}],
                    **body,
                },
            )
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


async def program(task):
    """A planner and a writer, each with its own prompt."""
    item = task.input["item"]
    plan = await ask("planner", PLANNER.replace("{item}", item), "Which facts?")
    return await ask("writer", WRITER.replace("{item}", item), f"Write about {item}: {plan}")


async def writer_alone(task):
    """The writer without a planner."""
    item = task.input["item"]
    return await ask("writer", WRITER.replace("{item}", item), f"Write about {item}.")


def words(task, output, attempt):
    """The share of the wanted words in the answer, less the harmful ones."""
    missing = [word for word in WANTED if word not in output]
    harm = 0.25 * sum(word in output for word in HARMFUL)
    why = f"missing: {', '.join(missing)}" if missing else ""
    return Score(max(1 - len(missing) / len(WANTED) - harm, 0.0), why)


class WordsBackend(Backend):
    """The scripted model."""

    def __init__(self):
        self.heads = []
        """The first message of each request."""
        self.fails = lambda head: False
        self.before = None
        """Awaited before each answer."""

    async def chat(self, body, *, headers, timeout_s):
        request = msgspec.json.decode(body)
        head = request["messages"][0]["content"]
        self.heads.append(head)
        if self.before is not None:
            await self.before(head)
        if self.fails(head):
            error = json.dumps({"error": {"message": "the engine is overloaded"}}).encode()
            return BanditReply([error], content_type="application/json", status=503)
        said = [
            word for word in WANTED if word in head or uniform(request.get("seed"), word) < 0.25
        ]
        said += [word for word in HARMFUL if word in head]
        answer = {
            "id": f"answer-{len(self.heads)}",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": " ".join(said) or "nothing"},
                    "finish_reason": "stop",
                }
            ],
        }
        return BanditReply([msgspec.json.encode(answer)], content_type="application/json")

    async def close(self):
        return


def uniform(*parts):
    return int(sha256(repr(parts).encode()).hexdigest()[:12], 16) / 16**12


class World:
    """A run with prompt phases; `tuner` is open inside `open`."""

    def __init__(self, directory, *, agent=program, store="memory", editor="good", **settings):
        self.directory = directory
        self.agent = agent
        self.backend = WordsBackend()
        self.train, self.val = tasks(0, 12), tasks(100, 16)
        self.losses = Losses()
        self.stages = []
        self.published = []
        self.reward = words
        self.interrupt_at = -1
        """Number of model and editor calls after which the run is cancelled, as by Ctrl-C."""
        self.calls = 0
        self.concurrency = 8
        self.settings = {
            "name": "run",
            "directory": str(directory),
            "model": "fake",
            "prompts": {"writer": {"agents": ["writer"], "captured": True}},
            "rollout": {"timeout_s": 600.0},
            **settings,
        }
        self.backend.before = self._called
        self._memory = MemoryStore() if store == "memory" else None
        self.prompt_world = PromptWorld(
            directory / "editor", WorldSettings(), editor=editors("```\n%s\n```")[editor]
        )

    @asynccontextmanager
    async def open(self, **settings):
        """Open the components of a process of the run; yields the tuner."""
        config = resolve({**self.settings, **settings})
        self.plugins = load_plugins()
        async with AsyncExitStack() as stack:
            self.store = self._memory or SqliteStore(self.directory / "store.sqlite")
            await self.store.open()
            stack.push_async_callback(self.store.close)
            self.gateway = gateway_server(
                self.store, GatewayOptions(deterministic=True), self.plugins
            )
            await self.gateway.start()
            stack.push_async_callback(self.gateway.stop)
            policy = Policy(name="frozen", agents=("*",), model="fake")
            await self.gateway.route(policy, self.backend)
            scorer = Scorer([NamedReward(name="words", function=self.reward)])
            options = RunnerOptions(concurrency=self.concurrency, grace_s=0.01)
            self.runner = Runner(self.store, self.gateway, self.agent, scorer, options)
            stack.callback(attach(integrations=make_integrations(self.plugins)).detach)
            self.source = RolloutSource(self.store, config)
            await self.source.abandon("run")
            adapter = self.plugins.registry("adapters").create(
                config.capture.adapter, [], policies=[policy], channel_weights={}
            )
            self.config = config
            self.setup = TuningSetup(
                config=config,
                plugins=self.plugins,
                source=self.source,
                adapter=adapter,
                publish=self._publish,
                stage=self.stages.append,
                losses=self.losses,
                train=self.train,
                val=self.val,
                directory=self.directory / "prompts",
            )
            yield PromptTuner(self.setup)

    async def alongside(self, work):
        """Run work together with the runner."""
        self._main = asyncio.current_task()
        return await run_alongside(self.runner, work)

    async def interrupted(self, point, **settings):
        """Tune until a number of model calls, and cancel; return whether that was reached."""
        self.calls, self.interrupt_at = 0, point
        running = asyncio.create_task(self.tune(**settings))
        await asyncio.wait([running])
        self.interrupt_at = -1
        return running.cancelled()

    async def _called(self, head):
        self.calls += 1
        if self.calls == self.interrupt_at:
            self._main.cancel()
        if self.calls >= self.interrupt_at > 0:
            await asyncio.Event().wait()

    async def learn(self, **settings):
        async with self.open(**settings) as tuner:
            return await self.alongside(tuner.prompts())

    async def tune(self, prompts=None, *, number=0, **settings):
        """Learn the prompts and run a phase, as a run does."""
        async with self.open(**settings) as tuner:

            async def work():
                given = prompts if prompts is not None else await tuner.prompts()
                with self.prompt_world.active():
                    return await tuner.tune(number, given)

            return await self.alongside(work())

    async def rollouts(self, *statuses):
        """Return the stored rollouts, after `open`."""
        store = self._memory or SqliteStore(self.directory / "store.sqlite")
        await store.open()
        try:
            query = RolloutQuery(limit=100_000, statuses=tuple(map(RolloutStatus, statuses)))
            return await store.rollouts(query)
        finally:
            await store.close()

    async def _publish(self, prompts):
        llm = LLM(model="frozen", base_url=f"{self.gateway.url}/v1", policy="frozen")
        resources = Resources(run_id="run", items={"frozen": llm, **prompts})
        self.published.append(dict(prompts))
        return await self.store.publish(resources)


def apo(rollouts=200, **options):
    """Return the section of a phase of ``apo`` with the scripted editor."""
    return {
        "optimizer": "apo",
        "rollouts": rollouts,
        "editor": {"function": SCRIPTED},
        "gradient_batch": 2,
        "val_batch": 4,
        "beam_width": 2,
        "branch_factor": 2,
        "rounds": 3,
        "confidence": 0.8,
        **options,
    }


def bootstrap(rollouts=100, **options):
    """Return the section of a phase of ``bootstrap``."""
    return {
        "optimizer": "bootstrap",
        "rollouts": rollouts,
        "threshold": 0.5,
        "max_demos": 3,
        "sets": 3,
        "confidence": 0.8,
        **options,
    }

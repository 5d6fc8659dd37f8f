"""`Trainer` of agentlightning over `agl_core.train`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import agl_core
from agl_compat._algorithms import APO, VERL, Settings
from agl_compat._lit import program_of
from agl_compat._log import TrainingLog, mask_as_asked
from agl_compat._names import renamed
from agl_compat._rates import service_settings
from agl_compat._resources import LLM, PromptTemplate
from agl_compat._selection import agents_of
from agl_compat._services import bus_settings
from agl_compat._storage import LightningStore, storage_settings
from agl_core.app import Report
from agl_core.errors import ConfigError
from agl_core.types import Evaluation

ADAPTER: Final = {"capture.adapter": "triplets"}
"""The setting that lets rollout functions return triplets."""
_DEV_ROWS: Final = 10
_NO_EFFECT: Final = frozenset(
    {"daemon", "heartbeat_interval", "llm_proxy", "strategy", "tracer", "triplet_exporter"}
)
"""Arguments of `Trainer` for parts that a run has of its own."""


class Trainer:
    """Trains the agents of a rollout function or of a `LitAgent`."""

    def __init__(  # noqa: PLR0913  the arguments of older programs
        self,
        *,
        algorithm: Any = None,
        n_workers: int | None = None,
        n_runners: int | None = None,
        adapter: Any = None,
        initial_resources: Mapping[str, Any] | None = None,
        store: LightningStore | None = None,
        settings: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """Configure a trainer.

        Args:
            algorithm: `VERL`, `APO`, or the name of an algorithm of agl-core.
            n_workers: Attempts in flight at a time.
            n_runners: The same.
            adapter: ``agent_match`` selects the agents to train; see `agents_of`.
            initial_resources: Prompts and models by name.
            store: Where records are kept.
            settings: Dotted keys of a run file to values, such as ``{"train.steps": 2}``; they
                override what the algorithm says.
            others: Parts that a run has of its own have no effect; anything else is an error.

        Raises:
            ConfigError: an argument is unknown.
        """
        unknown = sorted(others.keys() - _NO_EFFECT)
        if unknown:
            raise ConfigError(
                f"Trainer got {unknown}, which it does not know: docs/migrate.md says what replaces "
                f"them. Arguments without effect: {sorted(_NO_EFFECT)}"
            )
        today = "agl.train(run_agent, tasks, agents=[...])"
        if others:
            today += f". These have no effect: {', '.join(sorted(others))}"
        renamed("Trainer", today)
        self._algorithm = algorithm
        self._adapter = adapter
        self._resources = dict(initial_resources or {})
        self._settings: Settings = {
            **ADAPTER,
            **(storage_settings() if store is None else store.settings()),
            **bus_settings(),
            **service_settings(),
        }
        mask_as_asked()
        if (workers := n_runners or n_workers) is not None:
            self._settings["rollout.concurrency"] = workers
        self._given = dict(settings or {})

    def fit(
        self,
        agent: Any,
        train_dataset: Iterable[Any] | None = None,
        val_dataset: Iterable[Any] | None = None,
        *,
        dev_data: Iterable[Any] | None = None,
    ) -> Report:
        """Train, and return the report of the run.

        Args:
            agent: A rollout function or a `LitAgent`.
            train_dataset: Rows; the rollout function gets each as its task.
            val_dataset: Held-out rows.
            dev_data: An older name of `val_dataset`.

        Raises:
            ConfigError: a name or value is wrong.
        """
        if train_dataset is None or isinstance(train_dataset, str):
            raise ConfigError(
                f"Trainer.fit got train_dataset={train_dataset!r}: there is no server to name, a run "
                f"starts its own parts; give the rows to train on"
            )
        rows = tasks_of(train_dataset)
        held_out = val_dataset if val_dataset is not None else dev_data
        val = None if held_out is None else tasks_of(held_out)
        name, program = program_of(agent)
        agents = agents_of(self._adapter, getattr(agent, "trained_agents", None))
        settings = {**self._settings, **self._of_algorithm(name, rows, val), **self._given}
        optimizes = "phases" in settings
        return agl_core.train(
            program,
            rows,
            agents=() if optimizes else agents,
            val_tasks=val,
            overrides=settings,
            observers=[TrainingLog()],
        )

    def dev(
        self,
        agent: Any,
        train_dataset: Iterable[Any],
        val_dataset: Iterable[Any] | None = None,
    ) -> Evaluation:
        """Run the first rows without training, with the model in ``initial_resources``."""
        renamed("Trainer.dev", "agl doctor run.toml")
        del val_dataset
        _, program = program_of(agent)
        settings = {**self._settings, **self._of_resources(()), **self._given}
        rows = tasks_of(train_dataset)[:_DEV_ROWS]
        return agl_core.evaluate(program, rows, agents=["*"], overrides=settings)

    def _of_algorithm(
        self, agent: str, rows: list[dict[str, Any]], val: list[dict[str, Any]] | None
    ) -> Settings:
        algorithm = self._algorithm
        if isinstance(algorithm, VERL):
            return {**self._prompts(()), **algorithm.settings(len(rows))}
        if isinstance(algorithm, APO):
            if not any(isinstance(item, LLM) for item in self._resources.values()):
                raise ConfigError(
                    "Trainer with APO does not know the model that the rollout function asks: pass "
                    "initial_resources={..., 'main_llm': LLM(endpoint=..., model=...)}"
                )
            return {**self._of_resources((agent,)), **algorithm.settings(len(val or rows))}
        if algorithm is None or isinstance(algorithm, str):
            named = {"algorithm.name": algorithm} if algorithm else {}
            return {**self._prompts(()), **named}
        raise ConfigError(
            f"Trainer got algorithm={algorithm!r:.80}: give VERL(config), APO(client), or the name "
            f"of an algorithm; one of your own is a plugin (docs/plugins.md)"
        )

    def _of_resources(self, agents: tuple[str, ...]) -> Settings:
        models = [item for item in self._resources.values() if isinstance(item, LLM)]
        found = self._prompts(agents)
        if models:
            engine = {"name": "http", "base_url": models[0].endpoint}
            found |= {"engine": engine, "model": models[0].model}
        return found

    def _prompts(self, agents: tuple[str, ...]) -> Settings:
        prompts = {
            name: {"text": item.template, "agents": [*agents]}
            for name, item in self._resources.items()
            if isinstance(item, (PromptTemplate, agl_core.PromptTemplate))
        }
        return {"prompts": prompts} if prompts else {}


class _NoEffect:
    """A part that a run has of its own; its arguments have no effect."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        del arguments, named


class AgentOpsTracer(_NoEffect):
    """For ``Trainer(tracer=...)``, where it has no effect."""


class OtelTracer(_NoEffect):
    """For ``Trainer(tracer=...)``, where it has no effect."""


class LLMProxy(_NoEffect):
    """For ``Trainer(llm_proxy=...)``, where it has no effect."""


def tasks_of(rows: Any) -> list[dict[str, Any]]:
    """Return tasks whose input is the whole row, so that a rollout function gets it unchanged.

    Args:
        rows: An iterable, or an object with only ``__len__`` and ``__getitem__``.
    """
    if not isinstance(rows, Iterable):
        rows = [rows[number] for number in range(len(rows))]
    return [{"id": str(number), "input": row} for number, row in enumerate(rows)]

"""Learns the captured prompts of a run from its first rollouts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final

from agl_core.config import PromptConfig
from agl_core.errors import ConfigError, TrainingError
from agl_core.interfaces import AttemptRecord, LearnsPrompts
from agl_core.training import TuningSetup, derive_seed
from agl_core.types import RESERVED_PREFIX, FailureKind, PromptTemplate, any_matches
from agl_tuning._outcomes import Outcomes
from agl_tuning._runs import KeyedRollout, Runs

_TASKS: Final = 8
"""Different tasks that run at first: placeholders are found by comparing tasks."""
_MOST_TASKS: Final = 32
"""Tasks that run before an agent that made no call is an error."""


def rewriter_of(setup: TuningSetup) -> LearnsPrompts:
    """Return the registered rewriter that learns prompts.

    Raises:
        ConfigError: no plugin registers one.
    """
    registry = setup.plugins.registry("rewriters")
    for name in registry.names():
        rewriter = registry.create(name, setup.source.store)
        if isinstance(rewriter, LearnsPrompts):
            return rewriter
    raise ConfigError(
        f"prompts.NAME.captured = true needs a rewriter that learns prompts, and none of "
        f"{registry.names()} does: load the plugin 'prompts'"
    )


async def learn(
    setup: TuningSetup, runs: Runs, *, templates: Mapping[str, PromptTemplate]
) -> dict[str, PromptTemplate]:
    """Run training tasks while nothing is replaced, and return the captured prompts.

    Args:
        setup: The run's components.
        runs: Runs the rollouts.
        templates: The prompts that agents read, which are served meanwhile.

    Raises:
        ConfigError: see `LearnsPrompts.learn`; or two prompts capture the text of one agent.
        TrainingError: every attempt failed before its first call.
        StoreError: the store failed.
    """
    captured = {name: each for name, each in setup.config.prompts.items() if each.captured}
    rewriter = rewriter_of(setup)
    outcomes = Outcomes(setup.adapter, setup.losses, penalty=0.0)
    count = min(_MOST_TASKS, len(setup.train))
    # Neighbours in a data set are often alike, so any tasks of it are taken.
    tasks = random.Random(setup.config.seed).sample(list(setup.train), count)  # noqa: S311
    records: list[AttemptRecord] = []
    for start in range(0, count, _TASKS):
        wave = tasks[start : start + _TASKS]
        setup.stage(f"learning captured prompts from {start + len(wave)} rollouts")
        wanted = [
            KeyedRollout(
                key=str(number),
                task=task,
                mode="train",
                group_id=f"prompts-learn-{task.id}",
                seed=derive_seed(setup.config.seed, "prompts-learn", task.id),
                prompts=templates,
            )
            for number, task in enumerate(wave, start=start)
        ]
        records += await runs.run(wanted, outcomes.slim)
        if all(_speaks(records, each) for each in captured.values()):
            break
    _check(records, captured)
    return {
        name: rewriter.learn(records, name=name, agents=each.agents, tool=each.tool)
        for name, each in captured.items()
    }


def _speaks(records: Sequence[AttemptRecord], prompt: PromptConfig) -> bool:
    return any(any_matches(prompt.agents, agent) for agent in _agents(records))


def _agents(records: Sequence[AttemptRecord]) -> list[str]:
    names = {call.record.known_as for record in records for call in record.calls}
    return sorted(name for name in names if name and not name.startswith(RESERVED_PREFIX))


def _check(records: Sequence[AttemptRecord], captured: Mapping[str, PromptConfig]) -> None:
    failures = [record.attempt.failure for record in records]
    if all(failures) and not any(record.calls for record in records):
        last = failures[-1]
        raise TrainingError(
            f"Captured prompts cannot be learned: all {len(records)} attempts failed before their "
            f"first model call. The last failure ({last.kind if last else FailureKind.LOST}): "
            f"{last.message if last else 'unknown'}"
        )
    for (one, first), (other, second) in combinations(captured.items(), 2):
        for agent in _agents(records):
            both = any_matches(first.agents, agent) and any_matches(second.agents, agent)
            if both and first.tool == second.tool:
                raise ConfigError(
                    f"prompts.{one} and prompts.{other} both capture the text of agent {agent!r}: "
                    f"name each agent in one of them"
                )

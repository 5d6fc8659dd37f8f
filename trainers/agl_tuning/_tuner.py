"""The tuner of a run's prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agl_prompts import ChecksPhase

from agl_core.app import make_filters
from agl_core.config import PhaseConfig, check_options, prompt_phases
from agl_core.errors import ConfigError
from agl_core.interfaces import Optimizer, TakesFilters, Tuned
from agl_core.training import TuningSetup
from agl_core.types import LLM, PromptTemplate, Resources
from agl_tuning._learning import learn, rewriter_of
from agl_tuning._phase import RunPhase
from agl_tuning._runs import Runs, digest_of

_SAME: Final = ("agent", "agents", "model", "policies", "engine", "rewards", "seed")
"""Sections of the configuration with which an interrupted run must have run for its rollouts to be
used: before the first checkpoint, nothing else checks them."""


class PromptTuner:
    """Tunes the prompts of a run; implements `agl_core.interfaces.Tuner`."""

    def __init__(self, setup: TuningSetup) -> None:
        """Make the optimisers of all phases, so that a wrong option stops the run at its start.

        Raises:
            ConfigError: an optimiser is unknown, an option is wrong, or a prompt is captured and no
                plugin learns it.
            MissingExtraError: a library of an optimiser is not installed.
        """
        self._setup = setup
        self._resumed = setup.config.train.resume
        self._after_id = setup.source.newest
        registry = setup.plugins.registry("optimizers")
        for name in setup.config.optimizers:
            registry.get(name)
        self._optimizers = {
            number: _optimizer(setup, number, section)
            for number, section in prompt_phases(setup.config).items()
        }
        if any(prompt.captured for prompt in setup.config.prompts.values()):
            rewriter_of(setup)

    async def prompts(self) -> dict[str, PromptTemplate]:
        setup = self._setup
        templates = {
            name: PromptTemplate(template=prompt.text, agents=tuple(prompt.agents))
            for name, prompt in setup.config.prompts.items()
            if prompt.text is not None
        }
        await self._check(templates)
        if len(templates) == len(setup.config.prompts):
            return templates
        resources = await setup.publish(templates)
        runs = Runs(
            setup,
            scope=f"learn-{_scope(setup, templates, resources)}",
            after_id=self._after_id,
            progress=lambda _: None,
        )
        if self._resumed:
            await runs.find()
        try:
            captured = await learn(setup, runs, templates=templates)
        finally:
            await runs.close()
        known = {name: (templates | captured)[name] for name in setup.config.prompts}
        await setup.publish(known)
        await runs.consume()
        return known

    async def _check(self, templates: Mapping[str, PromptTemplate]) -> None:
        """Check the budget and the editors of all phases, before the first rollout.

        Raises:
            ConfigError: a phase would fail at its start.
        """
        unknown = {
            name: PromptTemplate(template="", known="", agents=tuple(each.agents), tool=each.tool)
            for name, each in self._setup.config.prompts.items()
        }
        prompts = {**unknown, **templates}
        for number, optimizer in self._optimizers.items():
            if isinstance(optimizer, ChecksPhase):
                phase = RunPhase(self._setup, number, prompts, scope="", after_id=self._after_id)
                await optimizer.check(phase)

    async def tune(self, number: int, prompts: Mapping[str, PromptTemplate]) -> Tuned:
        setup = self._setup
        resources = await setup.publish(prompts)
        phase = RunPhase(
            setup,
            number,
            prompts,
            scope=f"phase-{number}-{_scope(setup, prompts, resources)}",
            after_id=self._after_id,
        )
        if self._resumed:
            await phase.runs.find()
        else:
            _set_aside(phase)
        try:
            tuned = await self._optimizers[number].optimize(phase)
        finally:
            await phase.runs.close()
        await phase.runs.consume()
        return tuned


def _optimizer(setup: TuningSetup, number: int, section: PhaseConfig) -> Optimizer:
    name = section.optimizer or ""
    registry = setup.plugins.registry("optimizers")
    # All options may stand in the optimiser's own section.
    where = f"phases.{number}" if setup.config.phases[number].options else f"optimizers.{name}"
    options = check_options(section, registry.options_model(name), where=where)
    made: Optimizer = registry.create(name, options)
    if isinstance(made, TakesFilters):
        made.filter_by(make_filters(setup.config, setup.plugins))
    return made


def _scope(setup: TuningSetup, prompts: Mapping[str, PromptTemplate], resources: Resources) -> str:
    """Return a digest of all that rollouts depend on besides candidate, task and seed."""
    versions = {
        name: item.version for name, item in resources.items.items() if isinstance(item, LLM)
    }
    texts = {name: [prompt.template, prompt.known] for name, prompt in prompts.items()}
    settings = setup.config.model_dump(mode="json", include={*_SAME})
    return digest_of([versions, texts, settings])


def _set_aside(phase: RunPhase) -> None:
    """Rename the journal of an earlier run with this name, which must not answer for this one."""
    journal = phase.directory / f"{phase.number}-{phase.optimizer}.jsonl"
    try:
        journal.replace(journal.with_suffix(".jsonl.old"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"The journal of an earlier run, {journal}, stays: {error}") from error

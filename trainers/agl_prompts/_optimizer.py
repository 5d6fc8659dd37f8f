"""The base class of prompt optimisers, and the factory that a plugin registers."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

from agl_core.errors import ConfigError
from agl_core.interfaces import Candidate, Filter, Optimizer, PromptPhase, Tuned
from agl_prompts._errors import StudyEndedError
from agl_prompts._guards import overlap
from agl_prompts._options import Role, StudyOptions
from agl_prompts._study import Study

_log = logging.getLogger(__name__)


class PromptOptimizer(ABC):
    """A search for better prompts that sees candidates, tasks and scores only.

    ::

        class Mine(PromptOptimizer):
            roles = ("editor",)

            def least(self, study): ...
            async def optimize(self, study): ...

        mine = tunes(Mine)  # registered as "my_package._mine:mine" with config=MineOptions

    It is deterministic: random numbers come from `Study.random`, and no decision depends on time or
    on the order in which rollouts end. Then a resumed run repeats the same requests, which the
    store and the journal answer.
    """

    roles: ClassVar[tuple[Role, ...]] = ()
    """Roles that it passes to `Study.edit`; without a configured editor the phase does not start."""

    def __init__(self, options: Any) -> None:
        """Create an optimiser for one phase.

        Args:
            options: An instance of the registered options model.
        """
        self.options = options

    @abstractmethod
    def least(self, study: Study) -> int:
        """Return the smallest budget in rollouts with which one proposal can be accepted.

        It includes the evaluation of the incumbent. A smaller budget is a `ConfigError`.
        """

    def each(self, study: Study) -> int:
        """Return the largest number of rollouts that one more proposal may cost.

        The number of proposals that is announced at the start follows from it. By default a
        proposal is evaluated on all validation tasks.
        """
        return study.cost(len(study.val))

    @abstractmethod
    async def optimize(self, study: Study) -> Candidate:
        """Return the best candidate by validation score; the first wins ties.

        A `StudyEndedError` passes through: the result is then `Study.best`, or the error's
        `chosen`. An optimiser may raise one itself, to end with a reason.
        """


def tunes(make: Callable[[Any], PromptOptimizer]) -> Callable[[StudyOptions], Optimizer]:
    """Return the factory to register for a `PromptOptimizer` class.

    Its optimisers open the journal and the editors, check the budget, and return the best candidate
    so far if the study ends early. If no editor call was ever answered, or no rollout scored, the
    phase fails with that error.
    """

    def factory(options: StudyOptions) -> Optimizer:
        return _Tuning(make, options)

    return factory


@runtime_checkable
class ChecksPhase(Protocol):
    """An `Optimizer` that checks a phase before the run begins."""

    async def check(self, phase: PromptPhase) -> None:
        """Check editors and budget of a later phase; nothing runs.

        Raises:
            ConfigError: the phase would fail at its start.
        """
        ...


class _Tuning:
    def __init__(self, make: Callable[[Any], PromptOptimizer], options: StudyOptions) -> None:
        self._make = make
        self._options = options
        self._filters: Sequence[Filter] = ()

    def filter_by(self, filters: Sequence[Filter]) -> None:
        """Clean what optimisers and their models read of attempts."""
        self._filters = filters

    async def check(self, phase: PromptPhase) -> None:
        """See `ChecksPhase`."""
        _check_phase(phase)
        with TemporaryDirectory() as directory:
            study = Study(cast("PromptPhase", _Apart(phase, Path(directory))), self._options)
            try:
                self._checked(study, phase)
            finally:
                await study.close()

    async def optimize(self, phase: PromptPhase) -> Tuned:
        _check_phase(phase)
        study = Study(phase, self._options, self._filters)
        try:
            return await self._tune(study, phase)
        finally:
            await study.close()

    async def _tune(self, study: Study, phase: PromptPhase) -> Tuned:
        optimizer = self._checked(study, phase)
        _announce(study, phase, optimizer)
        ended: StudyEndedError | None = None
        try:
            best = await optimizer.optimize(study)
        except StudyEndedError as error:
            best, ended = error.chosen or study.best, error
        study.check_ended(ended)
        return study.result(best, str(ended or ""))

    def _checked(self, study: Study, phase: PromptPhase) -> PromptOptimizer:
        """Make the optimiser and check its editors and budget."""
        optimizer = self._make(self._options)
        study.check(optimizer.roles)
        least = optimizer.least(study)
        if phase.rollouts < least:
            raise ConfigError(
                f"phases[{phase.number}].rollouts = {phase.rollouts}: {phase.optimizer!r} needs at "
                f"least {least} rollouts for one proposal, with {len(phase.train)} training and "
                f"{len(phase.val)} validation tasks: raise rollouts, or give fewer validation tasks"
            )
        return optimizer


class _Apart:
    """A phase with another directory."""

    def __init__(self, phase: PromptPhase, directory: Path) -> None:
        self._phase = phase
        self.directory = directory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._phase, name)


def _check_phase(phase: PromptPhase) -> None:
    """Check that there is something to tune and something to tune it with.

    Raises:
        ConfigError: no prompt is tuned, or there are no tasks.
    """
    where = f"Phase {phase.number} ({phase.optimizer!r})"
    if not phase.prompts:
        raise ConfigError(
            f"{where} has no prompt to tune: name the agents of a prompt, "
            f"[prompts.NAME] agents = [...]"
        )
    if not (phase.train and phase.val):
        empty = "training" if not phase.train else "validation"
        raise ConfigError(f"{where} has no {empty} tasks")


def _announce(study: Study, phase: PromptPhase, optimizer: PromptOptimizer) -> None:
    """Show how many proposals the budget allows, and what is wrong with the tasks."""
    least, each = optimizer.least(study), max(optimizer.each(study), 1)
    proposals = 1 + (phase.rollouts - least) // each
    said = f"{phase.optimizer}: {phase.rollouts} rollouts, budget for {proposals} proposals"
    _log.info("%s", said)
    study.stage(said)
    shared = overlap(phase.train, phase.val)
    if shared:
        phase.losses.add("prompts_val_overlap", shared)
        _log.warning(
            "%d of %d validation tasks are training tasks too: the validation score of a tuned "
            "prompt is then too high",
            shared,
            len(phase.val),
        )

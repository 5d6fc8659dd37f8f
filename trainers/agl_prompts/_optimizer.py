"""The base class of prompt optimisers, and the factory that a plugin registers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from agl_core.interfaces import Candidate, Optimizer
from agl_prompts._options import Role, StudyOptions
from agl_prompts._study import Study


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

        A `StudyEndedError` passes through: the result is then `Study.best`.
        """


def tunes(
    make: Callable[[Any], PromptOptimizer],
) -> Callable[[StudyOptions], Optimizer]:
    """Return the factory to register for a `PromptOptimizer` class.

    The optimiser it makes opens the journal and the editors, checks the budget, and returns the
    best candidate so far if the study ends early. An editor that never answered is an
    `EditorError`.
    """
    raise NotImplementedError

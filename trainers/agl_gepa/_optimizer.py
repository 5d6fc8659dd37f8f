"""The optimiser ``gepa``: `gepa.optimize` in a thread, over a study."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from agl_prompts import PromptOptimizer, Role, Study, StudyEndedError, tunes
from gepa.api import optimize
from gepa.strategies.proposal_sampling import IndependentSampling

from agl_core.interfaces import Candidate
from agl_gepa._adapter import Editor, Instance, StudyAdapter
from agl_gepa._bridge import Bridge, run_alongside
from agl_gepa._compat import check_gepa
from agl_gepa._options import GepaOptions
from agl_gepa._templates import templates

_LOG = logging.getLogger(__name__)
_MERGE_TASKS = 5
"""Validation tasks, some of them repeated if there are fewer, on which gepa compares a merged
candidate with its parents."""


class Gepa(PromptOptimizer):
    """Runs the loop of the package ``gepa`` on a study.

    Per iteration gepa chooses a parent, evaluates it on a minibatch, has one of its prompts
    rewritten by the editor, which sees the results, and evaluates the child on the same minibatch.
    If the child's sum of scores is greater, it is evaluated on the validation tasks and may become a
    parent. Source: Agrawal et al., GEPA: Reflective Prompt Evolution Can Outperform Reinforcement
    Learning, arXiv:2507.19457.

    The budget, the checks of candidates and resuming are those of the study. gepa checks its own
    budget between iterations only, so this one stops it before an iteration that may not fit.
    """

    roles: ClassVar[tuple[Role, ...]] = ("editor",)

    def __init__(self, options: GepaOptions) -> None:
        """Create an optimiser for one phase.

        Raises:
            PluginError: the installed gepa lacks a part of the API that is used.
        """
        super().__init__(options)
        check_gepa()

    def least(self, study: Study) -> int:
        """Return the rollouts of the incumbent's validation and of one iteration."""
        return study.cost(len(study.val)) + self._iteration(study)

    def each(self, study: Study) -> int:
        """Return the rollouts of a child that is kept, its parent's minibatch included."""
        return study.cost(2 * self.options.minibatch + len(study.val))

    async def optimize(self, study: Study) -> Candidate:
        """Return the best candidate by validation score; the first wins ties.

        Raises:
            StudyEndedError: a limit of the study was reached, or all training tasks have a perfect
                score.
        """
        adapter = await run_alongside(lambda bridge: self._search(study, bridge), name="gepa")
        if adapter.all_perfect:
            raise StudyEndedError(
                f"Each of the {len(study.train)} training tasks has a score of "
                f"{self.options.perfect_score:g} or more, so that there is nothing to learn from: "
                f"add harder tasks, or set skip_perfect_score = false"
            )
        return study.best

    def _search(self, study: Study, bridge: Bridge) -> StudyAdapter:
        options: GepaOptions = self.options
        adapter = StudyAdapter(study, bridge, options)

        def stop(gepa_state: Any) -> bool:
            del gepa_state  # gepa's count of rollouts misses repeated ones
            small = study.left < self._iteration(study)
            return bridge.closed or small or adapter.all_perfect

        optimize(
            seed_candidate=study.whole(study.incumbent),
            trainset=[Instance(task, "train") for task in study.train],
            valset=[Instance(task, "val") for task in study.val],
            adapter=adapter,
            reflection_lm=Editor(study, bridge),
            reflection_prompt_template=templates(study.prompts, options.template),
            reflection_minibatch_size=options.minibatch,
            candidate_selection_strategy=options.parents,
            module_selector=options.update,
            sampling_strategy=IndependentSampling(options.proposals),
            acceptance_criterion=options.acceptance,
            skip_perfect_score=options.skip_perfect_score,
            perfect_score=options.perfect_score,
            use_merge=options.merge,
            max_merge_invocations=options.merges,
            stop_callbacks=stop,
            logger=_Logger(),
            track_best_outputs=False,
            seed=study.seed,
        )
        return adapter

    def _iteration(self, study: Study) -> int:
        """Return the largest number of rollouts of one iteration of gepa."""
        options: GepaOptions = self.options
        children = options.proposals * (2 * options.minibatch + len(study.val))
        merged = _MERGE_TASKS + len(study.val) if options.merge else 0
        return study.cost(max(children, merged))


class _Logger:
    """gepa's logger; its default ones print, and replace the process's streams."""

    def log(self, message: str) -> None:
        _LOG.debug("%s", message)


gepa_optimizer = tunes(Gepa)

"""Textual gradients with beam search."""

from __future__ import annotations

import math
from typing import ClassVar

from agl_prompts import PromptOptimizer, Role, Study, tunes

from agl_apo._options import ApoOptions
from agl_apo._search import Search
from agl_apo._templates import read_templates
from agl_apo._writer import PromptWriter
from agl_core.errors import ConfigError
from agl_core.interfaces import Candidate


class Apo(PromptOptimizer):
    """Textual gradients with beam search.

    Source: ProTeGi (Pryzant et al. 2023, Automatic Prompt Optimization with "Gradient Descent" and
    Beam Search, arXiv:2305.03495). A round has four parts. Each branch runs a candidate of the beam
    on training tasks, the critic says what is wrong with the prompt, and the editor writes a new
    text. All new candidates run on a batch of validation tasks, and the best of old and new ones
    are the next beam. Its first runs on the other validation tasks.

    Differences from ProTeGi: a round's candidates run concurrently on one batch, the same in every
    round, so that scores of different rounds are comparable, instead of a bandit over growing
    samples. The critic sees good attempts too, since scores are graded.

    With several prompts, consecutive branches edit them in turn. A reward of the whole attempt does
    not say which agent caused it, so the prompt "whose calls fail most" is mostly undefined. A
    prompt whose agents made no call in the branch's attempts is passed over.

    **Choice.** The best of many noisy means is too high: of 48 equal candidates with p = 0.5 per
    task, the best on 16 tasks has 0.77 on average. Therefore the batch only decides who leads, and
    the other validation tasks, at least half, decide who is better: the result is the leader with
    the highest mean there among those with ``p_value(incumbent, leader) <= (1 - confidence) /
    rounds``, else the incumbent. Other tasks, and not new rollouts of the same ones, because a
    program may answer a task equally each time. As no result there chose a leader, and at most one
    leader per round is tested, equal candidates replace the incumbent with probability ``1 -
    confidence`` at most (Bonferroni).
    """

    roles: ClassVar[tuple[Role, ...]] = ("critic", "editor")

    def __init__(self, options: ApoOptions) -> None:
        """Read the templates, so that a wrong one stops the run before its first rollout.

        Raises:
            ConfigError: a template cannot be read or lacks a placeholder.
        """
        super().__init__(options)
        self._options = options
        self._templates = read_templates(options.critique_templates, options.edit_templates)

    def least(self, study: Study) -> int:
        """Return the rollouts of the incumbent, one branch and the validation of its child.

        Raises:
            ConfigError: the validation tasks are too few for the confidence.
        """
        options, tasks = self._options, len(study.val)
        rest = tasks - options.batch_of(tasks)
        if options.confidence and 0.5**rest > options.level:
            fewest = math.ceil(-math.log2(options.level))
            raise ConfigError(
                f"optimizers.apo.confidence {options.confidence:g} over {options.rounds} rounds "
                f"needs at least {min(2 * fewest - 1, fewest + options.val_batch)} validation tasks, "
                f"of which {fewest} decide, but there are {tasks}: with fewer, chance alone may make "
                f"any candidate look better. Add tasks, or lower confidence; 0 takes the highest "
                f"mean"
            )
        return study.cost(tasks) + self.each(study) + study.cost(rest)

    def each(self, study: Study) -> int:
        options = self._options
        shown = min(options.gradient_batch, len(study.train))
        return study.cost(shown) + study.cost(options.batch_of(len(study.val)))

    async def optimize(self, study: Study) -> Candidate:
        writer = PromptWriter(study, self._options, self._templates)
        return await Search(study, self._options, writer).run()


apo = tunes(Apo)

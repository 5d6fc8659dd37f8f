"""Random search over sets of demonstrations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from agl_prompts import (
    CandidateRefusedError,
    PromptOptimizer,
    Seen,
    Study,
    StudyEndedError,
    p_value,
    standings,
    tunes,
)

from agl_bootstrap._demos import (
    Demo,
    Unusable,
    apart,
    demo_of,
    with_demos,
    without_demos,
)
from agl_bootstrap._options import BootstrapOptions
from agl_core.errors import ConfigError
from agl_core.interfaces import Candidate, TunedPrompt
from agl_core.types import Task

_DRAWS_PER_SET = 20
"""Draws for each set that is wanted; fewer sets come out if the demonstrations are few."""
_CAUSES: Mapping[str, str] = {
    "calls": "without a call of the prompt's agents",
    "long": "longer than demo_chars",
    "braces": "with a name in braces, which would be a placeholder",
}


class Bootstrap(PromptOptimizer):
    """Demonstrations out of an agent's own best-rewarded calls, chosen by validation.

    Source: BootstrapFewShotWithRandomSearch of DSPy (Khattab et al. 2023, DSPy: Compiling
    Declarative Language Model Calls into Self-Improving Pipelines, arXiv:2310.03714). The incumbent
    runs on training tasks. Attempts whose score reaches `BootstrapOptions.threshold` give one
    demonstration for each prompt. Random sets of them, up to `max_demos` per prompt and in random
    order, run on validation tasks, beside the prompt without demonstrations.

    **No leak.** A task's own demonstration in the prompt is its answer. A set's text is the same
    for all tasks, as one candidate is one published version, so demonstrations come only from
    training tasks that are no validation tasks, by id and by input. Without any such task there is
    no search.

    **Choice.** The highest mean of many sets is too high. Therefore half of the validation tasks
    choose the best set, and the other half decides: the set is the result if ``p_value(incumbent,
    set) <= 1 - confidence`` there, else the incumbent is. Other tasks, and not new rollouts of the
    same ones, because a program may answer a task equally each time. As no result there chose the
    set, sets that do not help replace the incumbent with probability ``1 - confidence`` at most.
    """

    def __init__(self, options: BootstrapOptions) -> None:
        super().__init__(options)
        self._options = options

    def least(self, study: Study) -> int:
        """Return the rollouts of the incumbent, `max_demos` training tasks, and one set.

        Raises:
            ConfigError: every training task is a validation task, the validation tasks are too few
                for the confidence, or all prompts are descriptions of tools.
        """
        options, tasks = self._options, len(study.val)
        sources = apart(study.train, study.val)
        if not sources:
            raise ConfigError(
                f"optimizers.bootstrap: all {len(study.train)} training tasks are validation tasks "
                f"too, so each demonstration would be the answer to a validation task: set "
                f"tasks.val, or pass val_tasks, with other tasks"
            )
        if not _systems(study):
            raise ConfigError(
                f"optimizers.bootstrap adds demonstrations to system prompts, but all prompts "
                f"({', '.join(study.prompts)}) are descriptions of tools"
            )
        if options.confidence and 0.5 ** (tasks - tasks // 2) > options.level:
            fewest = math.ceil(-math.log2(options.level))
            raise ConfigError(
                f"optimizers.bootstrap.confidence {options.confidence:g} needs at least "
                f"{2 * fewest - 1} validation tasks, of which {fewest} decide, but there are "
                f"{tasks}: with fewer, chance alone may make any set look better. Add tasks, or "
                f"lower confidence; 0 takes the highest mean"
            )
        return 2 * study.cost(tasks) + study.cost(self._first(sources))

    def _first(self, sources: Sequence[Task]) -> int:
        return min(self._options.max_demos, len(sources))

    def _halves(self, study: Study) -> tuple[list[Task], list[Task]]:
        """Return the validation tasks that choose a set, and those that decide."""
        order = study.random("halves").sample(list(study.val), len(study.val))
        size = len(order) // 2 if self._options.confidence else len(order)
        return order[:size], order[size:]

    async def optimize(self, study: Study) -> Candidate:
        try:
            return await self._search(study)
        except StudyEndedError as end:
            end.chosen = study.incumbent  # a set that was not validated is no result
            raise

    async def _search(self, study: Study) -> Candidate:
        options, incumbent = self._options, study.incumbent
        study.stage("scores the incumbent prompts")
        choosing, deciding = self._halves(study)
        [before] = await study.evaluate([(incumbent, [*choosing, *deciding])], split="val")
        pools = await self._collect(study) if options.max_demos else {}
        left = study.left - study.cost(len(deciding))
        count = min(options.sets, max(left // study.cost(len(choosing)), 0))
        candidates = self._candidates(study, pools, count=count)
        if not candidates:
            raise StudyEndedError(
                "max_demos is 0: no demonstrations are added"
                if not options.max_demos
                else "no set of demonstrations could be proposed: see the journal"
            )
        study.stage(f"compares {len(candidates)} sets of demonstrations")
        results = await study.evaluate([(each, choosing) for each in candidates], split="val")
        scores = standings([before[: len(choosing)], *results])
        best = scores.index(max(scores))
        if best == 0:
            raise StudyEndedError(
                f"none of {len(candidates)} sets of demonstrations is ahead of the incumbent"
            )
        return await self._checked(
            study, candidates[best - 1], before[len(choosing) :], tasks=deciding
        )

    async def _collect(self, study: Study) -> dict[str, list[Demo]]:
        """Run the incumbent on training tasks; return the demonstrations of each prompt, best first.

        Raises:
            StudyEndedError: there is no demonstration.
        """
        options = self._options
        sources = apart(study.train, study.val)
        study.random("tasks").shuffle(sources)
        one_set = study.cost(len(study.val))
        allowed = max((study.left - one_set) // 2, study.cost(self._first(sources)))
        sources = sources[: allowed // study.cost(1)]
        prompts = _systems(study)
        pools: dict[str, list[Demo]] = {prompt.name: [] for prompt in prompts}
        seen: list[Seen] = []
        causes: Counter[str] = Counter()
        while sources and min(map(len, pools.values())) < options.pool:
            wave, sources = sources[: options.pool], sources[options.pool :]
            study.stage(f"looks for demonstrations in {len(seen) + len(wave)} attempts")
            [results] = await study.evaluate([(study.incumbent, wave)], split="train")
            seen += results
            for each in results:
                for prompt in prompts:
                    found = self._demo(each, prompt)
                    if isinstance(found, str):
                        causes[found] += 1
                    else:
                        pools[prompt.name].append(found)
        if not any(pools.values()):
            raise StudyEndedError(self._found_none(seen, causes))
        return {
            name: sorted(pool, key=lambda each: -each.score)[: options.pool]
            for name, pool in pools.items()
        }

    def _demo(self, seen: Seen, prompt: TunedPrompt) -> Demo | Unusable:
        options = self._options
        return demo_of(
            seen,
            prompt,
            threshold=options.threshold,
            max_chars=options.demo_chars,
            form=options.form,
        )

    def _found_none(self, seen: Sequence[Seen], causes: Counter[str]) -> str:
        kept = [each for each in seen if not each.lost]
        reached = [each for each in kept if min(each.scores) >= self._options.threshold]
        highest = max((each.score for each in kept), default=math.nan)
        reason = (
            f"0 demonstrations found: {len(reached)} of {len(kept)} attempts reach the threshold "
            f"{self._options.threshold:g} (highest score {highest:.3g})"
        )
        unusable = [f"{causes[cause]} {text}" for cause, text in _CAUSES.items() if causes[cause]]
        return f"{reason}; {', '.join(unusable)}" if unusable else reason

    def _candidates(
        self, study: Study, pools: Mapping[str, Sequence[Demo]], *, count: int
    ) -> list[Candidate]:
        """Propose up to `count` different sets.

        The first ones are: the best demonstrations of all prompts, the prompts without those of an
        earlier phase, and the best ones of each prompt alone. The others are random.
        """
        rng = study.random("sets")
        most = self._options.max_demos
        best = {name: list(pool[:most]) for name, pool in pools.items()}
        drawn: list[Mapping[str, Sequence[Demo]]] = [best, {}]
        drawn += [{name: demos} for name, demos in best.items()]
        for _ in range(count * _DRAWS_PER_SET):
            sizes = {name: rng.randint(0, min(most, len(pool))) for name, pool in pools.items()}
            drawn.append({name: rng.sample(pools[name], size) for name, size in sizes.items()})
        known = {study.digest(study.incumbent)}
        candidates: list[Candidate] = []
        for demos in drawn:
            texts = self._texts(study, demos)
            if len(candidates) >= count or study.digest(texts) in known:
                continue
            known.add(study.digest(texts))
            why = "; ".join(
                f"{name}: {', '.join(each.task_id for each in given) or 'none'}"
                for name, given in demos.items()
            )
            try:
                candidates.append(
                    study.propose(
                        texts,
                        parent=study.incumbent,
                        why=f"demonstrations of tasks: {why or 'none'}",
                        demonstrations=True,
                    )
                )
            except CandidateRefusedError:
                continue
        return candidates

    def _texts(self, study: Study, demos: Mapping[str, Sequence[Demo]]) -> dict[str, str]:
        options = self._options
        texts: dict[str, str] = {}
        for prompt in _systems(study):
            text = without_demos(prompt.text)
            left = max(options.max_chars, len(prompt.text)) - len(text)
            texts[prompt.name] = with_demos(
                text, demos.get(prompt.name, ()), max_chars=min(options.demos_chars, left)
            )
        return texts

    async def _checked(
        self, study: Study, candidate: Candidate, before: Sequence[Seen], *, tasks: Sequence[Task]
    ) -> Candidate:
        """Return the best set if tasks that did not choose it show that it is better.

        Raises:
            StudyEndedError: they do not.
        """
        options = self._options
        if not options.confidence:
            return candidate
        study.stage("validates the best set of demonstrations")
        [after] = await study.evaluate([(candidate, tasks)], split="val")
        p = p_value(before, after)
        if p <= options.level:
            return candidate
        raise StudyEndedError(
            f"the best set of demonstrations is not better than the incumbent at confidence "
            f"{options.confidence:g}: {study.mean(after):.3g} against {study.mean(before):.3g} on "
            f"{len(tasks)} validation tasks that did not choose it (p {p:.2g}, required "
            f"{options.level:.2g}): add validation tasks or samples, or lower "
            f"optimizers.bootstrap.confidence"
        )


def _systems(study: Study) -> list[TunedPrompt]:
    """Return the prompts that are no descriptions of tools."""
    return [prompt for prompt in study.prompts.values() if not prompt.tool]


bootstrap = tunes(Bootstrap)

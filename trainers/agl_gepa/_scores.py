"""Scores that gepa compares, where the infrastructure lost rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, inf

from agl_prompts import Seen
from gepa.core.adapter import EvaluationBatch

GepaEvaluation = EvaluationBatch[Seen, None]


def scored(seen: Sequence[Seen], other: GepaEvaluation | None, *, rollouts: int) -> GepaEvaluation:
    """Return the results of a candidate in gepa's form.

    gepa compares sums of scores over all tasks. Where the candidate or the other one lost a task,
    the candidate's score on it is the other's score plus the mean difference on the tasks that both
    have: sums then differ as these tasks do, whichever tasks were lost.

    Args:
        seen: The candidate's results.
        other: Results of the candidate with which gepa compares it, on the same tasks in the same
            order; without it, a lost task gets the mean of the others.
        rollouts: Number of rollouts that were used.
    """
    kept = [each for each in seen if not each.lost]
    return EvaluationBatch(
        outputs=[None] * len(seen),
        scores=_alone(seen) if other is None else _compared(seen, other),
        trajectories=list(seen) if kept else [],
        num_metric_calls=rollouts,
    )


def refused(tasks: int) -> GepaEvaluation:
    """Return the results of a candidate that must not run: the worst scores."""
    return EvaluationBatch(
        outputs=[None] * tasks, scores=[-inf] * tasks, trajectories=[], num_metric_calls=0
    )


def _alone(seen: Sequence[Seen]) -> list[float]:
    kept = [each.score for each in seen if not each.lost]
    mean = fsum(kept) / len(kept) if kept else -inf
    return [mean if each.lost else each.score for each in seen]


def _compared(seen: Sequence[Seen], other: GepaEvaluation) -> list[float]:
    theirs = other.trajectories
    if not theirs:
        return [-inf] * len(seen)
    both = [not (mine.lost or its.lost) for mine, its in zip(seen, theirs, strict=True)]
    if not any(both):
        return [-inf] * len(seen)
    pairs = zip(seen, other.scores, both, strict=True)
    differences = [mine.score - score for mine, score, common in pairs if common]
    shift = fsum(differences) / len(differences)
    return [
        mine.score if common else score + shift
        for mine, score, common in zip(seen, other.scores, both, strict=True)
    ]

"""Evaluation: scores of the agents on a set of tasks, with 95 % intervals."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from agl_core.config import EvalConfig, RunConfig
from agl_core.errors import CaptureError, ConfigError, RewardError
from agl_core.interfaces import Adapter, AttemptRecord
from agl_core.training.groups import failure_of
from agl_core.training.rollouts import RolloutPlan, RolloutSource
from agl_core.types import Estimate, Evaluation, FailureKind, Losses, Mode, Task

_Z = 1.959963984540054
"""97.5 % quantile of the normal distribution."""


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of at least one value with its 95 % interval.

    If all values are 0 or 1, the interval is Wilson's score interval (Wilson 1927), which stays
    within 0 and 1 and has a positive width even if all values are equal. Otherwise it is the mean
    plus and minus ``t(n - 1) * s / sqrt(n)``, clipped to [0, 1] if all values are within [0, 1].
    The interval of a single value that is neither 0 nor 1 has width 0, because the deviation is
    unknown.
    """
    count = len(values)
    mean = math.fsum(values) / count
    if all(value in (0.0, 1.0) for value in values):
        low, high = _wilson(mean, count)
    else:
        low, high = _student(values, mean)
        if min(values) >= 0 and max(values) <= 1:
            low, high = max(low, 0.0), min(high, 1.0)
    return Estimate(mean=mean, low=low, high=high, n=count)


def _wilson(share: float, count: int) -> tuple[float, float]:
    z2 = _Z * _Z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return min(max(middle - half, 0.0), share), max(min(middle + half, 1.0), share)


def _student(values: Sequence[float], mean: float) -> tuple[float, float]:
    count = len(values)
    if count == 1:
        return mean, mean
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = _t_quantile(count - 1) * math.sqrt(variance / count)
    return mean - half, mean + half


def _t_quantile(degrees: int) -> float:
    """97.5 % quantile of Student's distribution.

    It is exact for one and two degrees of freedom. For more, it uses the expansion in powers of
    1/degrees by Abramowitz and Stegun 26.7.5, with an error below 0.3 % at three degrees and less
    above.
    """
    if degrees == 1:
        return math.tan(math.pi * 0.475)
    if degrees == 2:  # noqa: PLR2004 (closed form of two degrees)
        return 0.95 / math.sqrt(2 * 0.975 * 0.025)
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees ** (power + 1) for power, term in enumerate(terms))


_REWARDS: Final = ("rewards_", "agents_")
"""Prefixes of causes that concern only training, which evaluations ignore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one attempt at one task."""

    task_id: str
    score: float = 0.0
    channels: Mapping[str, float] = field(default_factory=dict[str, float])
    failure: FailureKind | None = None
    """Failure kind if the attempt failed; its score then counts as `failure_score`."""
    lost: Mapping[str, int] = field(default_factory=dict[str, int])
    """Losses by cause, with ``attempts_without_calls`` if the attempt made no call."""


def outcomes(records: Sequence[AttemptRecord], adapter: Adapter) -> list[Outcome]:
    """Score ended attempts; an attempt with a reward error or capture error counts as failed."""
    return [_outcome(record, adapter) for record in records]


def summarize(
    results: Sequence[Outcome],
    *,
    step: int,
    config: EvalConfig,
    wall_s: float = 0.0,
    failure_score: float = 0.0,
    by_task: bool = False,
) -> Evaluation:
    """Return means over tasks with 95 % intervals (see `agl_core.training.evaluate.estimate`).

    The attempts of a task are averaged first, so all tasks have the same weight. A failed attempt
    counts in every mean: with `failure_score` in the score, with 0 in the channels, and as not
    passed in pass@k. An attempt without a reward on a channel is left out of that channel's mean.
    An estimate's `n` is the number of tasks with a value.

    Raises:
        ConfigError: there are no results, or a score is not finite.
    """
    if not results:
        raise ConfigError("There is nothing to evaluate: the set of tasks is empty")
    scores: dict[str, list[float]] = defaultdict(list)
    passes: dict[str, list[bool]] = defaultdict(list)
    names = sorted({channel for result in results for channel in result.channels})
    channels: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in names}
    for result in results:
        failed = result.failure is not None
        score = failure_score if failed else result.score
        if not math.isfinite(score):
            raise ConfigError(
                f"Score {score} of task {result.task_id!r} is not finite: let the attempt fail"
            )
        scores[result.task_id].append(score)
        passes[result.task_id].append(not failed and score >= config.threshold)
        for name in names:
            if failed or name in result.channels:
                channels[name][result.task_id].append(0.0 if failed else result.channels[name])
    counts = [(len(attempts), sum(attempts)) for attempts in passes.values()]
    at_k = {k: pass_at_k(counts, k=k) for k in sorted(set(config.pass_at))}
    failures = Counter(result.failure.value for result in results if result.failure is not None)
    return Evaluation(
        step=step,
        score=_over_tasks(scores),
        channels={name: _over_tasks(values) for name, values in channels.items()},
        pass_at_k={k: value for k, value in at_k.items() if value is not None},
        failed=dict(failures),
        lost=_lost(results),
        wall_s=wall_s,
        tasks=_means(scores) if by_task else {},
    )


def pass_at_k(counts: Sequence[tuple[int, int]], *, k: int) -> Estimate | None:
    """Return the probability that at least one of k attempts passes, as a mean over tasks.

    For a task with n attempts of which c passed, the unbiased estimate is
    ``1 - C(n - c, k) / C(n, k)``, after Chen et al. 2021, "Evaluating Large Language Models Trained
    on Code" (arXiv:2107.03374). Tasks with fewer than k attempts are left out; the result's `n` is
    the number of the other tasks, and the result is None if there are none.

    Args:
        counts: (attempts, passed) per task.
        k: Number of attempts, at least 1.

    Raises:
        ConfigError: k is less than 1, or a count is not between 0 and the number of attempts.
    """
    if k < 1:
        raise ConfigError(f"pass@{k} is undefined: k must be at least 1")
    for attempts, passed in counts:
        if not 0 <= passed <= attempts:
            raise ConfigError(f"{passed} of {attempts} attempts cannot have passed")
    values = [
        1.0 - math.comb(attempts - passed, k) / math.comb(attempts, k)
        for attempts, passed in counts
        if attempts >= k
    ]
    return estimate(values) if values else None


def agent_scores(evaluations: Sequence[Evaluation], agent: str) -> dict[str, Estimate]:
    """Return an agent's scores in the first and the last evaluation; see `Report.agents`."""
    ends = zip(("before", "after"), [*evaluations[:1], *evaluations[1:][-1:]], strict=False)
    return {when: each.channels.get(agent, each.score) for when, each in ends}


def is_better(candidate: Estimate, best: Estimate | None) -> bool:
    """Return whether a candidate's mean is greater than the best one's; NaN never is.

    Scores on other numbers of tasks are not comparable, so the candidate then counts as better.
    """
    if math.isnan(candidate.mean):
        return False
    return best is None or best.n != candidate.n or candidate.mean > best.mean


def _outcome(record: AttemptRecord, adapter: Adapter) -> Outcome:
    task_id = record.rollout.task.id
    failure = failure_of(record)
    if failure is not None:
        return Outcome(task_id=task_id, failure=failure.kind)
    try:
        adapted = adapter.adapt(record)
    except RewardError:
        return Outcome(task_id=task_id, failure=FailureKind.REWARD)
    except CaptureError:
        return Outcome(task_id=task_id, failure=FailureKind.CAPTURE)
    lost = {
        name: count
        for name, count in adapted.losses.counts.items()
        if not name.startswith(_REWARDS)
    }
    if not adapted.calls:
        lost["attempts_without_calls"] = 1
    return Outcome(task_id=task_id, score=adapted.score, channels=adapted.channels, lost=lost)


def _lost(results: Sequence[Outcome]) -> dict[str, int]:
    losses = Losses()
    for result in results:
        losses.merge(Losses(counts=dict(result.lost)))
    return losses.counts


def _over_tasks(values: Mapping[str, Sequence[float]]) -> Estimate:
    return estimate([*_means(values).values()])


def _means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {task: math.fsum(of_task) / len(of_task) for task, of_task in values.items()}


class Evaluator:
    """The evaluation of the weights and prompts that are currently served."""

    def __init__(self, source: RolloutSource, adapter: Adapter, config: RunConfig) -> None:
        self._source = source
        self._adapter = adapter
        self._config = config

    async def evaluate(
        self, tasks: Sequence[Task], *, step: int, resources_version: int, mode: Mode = "val"
    ) -> Evaluation:
        """Run every task ``eval.samples`` times and return the scores.

        Seeds do not depend on the step, so that evaluations are comparable.

        Raises:
            ConfigError: there are no tasks.
        """
        started = time.perf_counter()
        plan = RolloutPlan(
            tasks=tasks,
            samples=self._config.eval.samples,
            mode=mode,
            step=step,
            resources_version=resources_version,
        )
        records = await self._source.run(plan)
        results = outcomes(records, self._adapter)
        await self._source.consume(records)
        wall_s = time.perf_counter() - started
        return summarize(
            results,
            step=step,
            config=self._config.eval,
            wall_s=wall_s,
            failure_score=self._config.rollout.penalty,
            by_task=mode == "test",
        )

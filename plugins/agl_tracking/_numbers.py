"""The numbers and texts of a run by name, which are the same in every tracker.

The names must not change: charts and queries use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from agl_core.types import Estimate, Evaluation, Report, StepReport


def step_numbers(report: StepReport) -> dict[str, float]:
    """Return a step's numbers by name; ``reward`` only if the step had rollouts."""
    reward = {} if report.reward is None else {"reward": report.reward}
    return {
        **reward,
        **{f"reward/{channel}": value for channel, value in report.channels.items()},
        "rollouts": float(report.rollouts),
        "calls": float(report.calls),
        "tokens": float(report.tokens),
        "wall_s": report.wall_s,
        **_counts("failures", report.failures),
        **_counts("lost", report.lost),
        **_breaks("breaks", report.breaks),
        **_counts("rows", report.rows),
        **{f"metrics/{name}": value for name, value in report.metrics.items()},
    }


def evaluation_numbers(evaluation: Evaluation) -> dict[str, float]:
    """Return an evaluation's numbers by name; each score with its 95 % confidence interval."""
    numbers = _estimate("eval/score", evaluation.score)
    for channel, value in evaluation.channels.items():
        numbers |= _estimate(f"eval/channel/{channel}", value)
    for k, value in evaluation.pass_at_k.items():
        numbers |= _estimate(f"eval/pass_at_{k}", value)
    return {
        **numbers,
        "eval/tasks": float(evaluation.score.n),
        "eval/wall_s": evaluation.wall_s,
        **_counts("eval/failed", evaluation.failed),
    }


def outcome_numbers(outcome: Report | BaseException) -> dict[str, float]:
    """Return the numbers of a run's outcome by name; for a failed run only ``final/failed``."""
    if isinstance(outcome, BaseException):
        return {"final/failed": 1.0}
    numbers: dict[str, float | None] = {
        "final/failed": 0.0,
        "final/steps": float(len(outcome.steps)),
        "final/calls": float(outcome.calls),
        "final/wall_s": outcome.wall_s,
        "final/seconds_per_step": outcome.seconds_per_step,
        "final/reward_first": outcome.reward.first if outcome.reward else None,
        "final/reward_last": outcome.reward.last if outcome.reward else None,
        "final/score": outcome.evaluations[-1].score.mean if outcome.evaluations else None,
        **_counts("final/lost", outcome.lost),
        **_breaks("final/breaks", outcome.breaks),
        **_counts("final/rows", outcome.rows.by_agent),
        **_prompt_scores(outcome),
    }
    return {name: value for name, value in numbers.items() if value is not None}


def outcome_facts(outcome: Report | BaseException) -> dict[str, str]:
    """Return the texts of a run's outcome by name: its weights and prompts, or its failure."""
    if isinstance(outcome, BaseException):
        return {"final/failure": f"{type(outcome).__name__}: {outcome}"}
    facts = {"final/best": outcome.best or ""}
    for policy, state in outcome.policies.items():
        for fact in ("version", "path", "sha256_before", "sha256_after"):
            facts[f"final/policy/{policy}/{fact}"] = str(state.get(fact, ""))
    return facts | {f"final/prompt/{name}": prompt.text for name, prompt in outcome.prompts.items()}


def flat_config(config: Mapping[str, object]) -> dict[str, str]:
    """Return a configuration's values as text by dotted key, for services with flat settings."""
    return {path.removeprefix("."): _text(value) for path, value in _leaves(config, "")}


def _counts(kind: str, counts: Mapping[str, int]) -> dict[str, float]:
    return {f"{kind}/{name}": float(count) for name, count in counts.items()}


def _prompt_scores(report: Report) -> dict[str, float]:
    """Return the mean scores of tuned prompts, in which they were chosen."""
    return {
        f"final/prompt/{name}/{when}": score.mean
        for name, prompt in report.prompts.items()
        for when, score in (("before", prompt.before), ("after", prompt.after))
        if score is not None
    }


def _breaks(kind: str, breaks: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    return {
        name: count
        for agent, causes in breaks.items()
        for name, count in _counts(f"{kind}/{agent}", causes).items()
    }


def _estimate(name: str, value: Estimate) -> dict[str, float]:
    return {name: value.mean, f"{name}_low": value.low, f"{name}_high": value.high}


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield from _leaves(inner, f"{path}.{key}")  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):  # pyright: ignore[reportUnknownVariableType]
        for index, inner in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            yield from _leaves(inner, f"{path}.{index}")  # pyright: ignore[reportUnknownArgumentType]
    else:
        yield path, value


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()

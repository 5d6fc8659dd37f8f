"""Shared code of trackers: the names of a run's numbers, and a log of what was sent.

The names are the same in every tracker and must not change: charts and queries use them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from agl_core.files import make_private_directory, write_private
from agl_core.interfaces import TrackedRun
from agl_core.types import Estimate, Evaluation, Report, StepReport

__all__ = [
    "SentLog",
    "evaluation_numbers",
    "flat_config",
    "outcome_facts",
    "outcome_numbers",
    "step_numbers",
]

_log = logging.getLogger(__name__)

_FOLDER: Final = "trackers"
"""Folder in a run's directory."""


def step_numbers(report: StepReport) -> dict[str, float]:
    """Return a step's numbers by name."""
    return {
        "reward": report.reward,
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
    }
    return {name: value for name, value in numbers.items() if value is not None}


def outcome_facts(outcome: Report | BaseException) -> dict[str, str]:
    """Return the texts of a run's outcome by name: its weights, or its failure."""
    if isinstance(outcome, BaseException):
        return {"final/failure": f"{type(outcome).__name__}: {outcome}"}
    facts = {"final/best": outcome.best or ""}
    for policy, state in outcome.policies.items():
        for fact in ("version", "path", "sha256_before", "sha256_after"):
            facts[f"final/policy/{policy}/{fact}"] = str(state.get(fact, ""))
    return facts


def flat_config(config: Mapping[str, object]) -> dict[str, str]:
    """Return a configuration's values as text by dotted key, for services with flat settings."""
    return {path.removeprefix("."): _text(value) for path, value in _leaves(config, "")}


class _Sent(msgspec.Struct, kw_only=True):
    run: str
    step: int = -1
    evaluation: int = -1


class SentLog:
    """The newest step and evaluation sent to a service, in a file in the run's directory.

    For services that cannot replace a value: a resumed run continues the service's run, and
    repeated steps are not sent a second time.
    """

    def __init__(self, file: Path, sent: _Sent) -> None:
        self._file = file
        self._sent = sent

    @classmethod
    def open(cls, run: TrackedRun, tracker: str) -> SentLog | None:
        """Open the log of a resumed run; None for a new run, or if there is no log."""
        file = _log_file(run, tracker)
        if run.resumed_at is None or not file.exists():
            return None
        sent = msgspec.json.decode(file.read_bytes(), type=_Sent)
        if sent.step > run.resumed_at:
            _log.warning(
                "Tracker %r was sent steps up to %d before the run was interrupted: their first "
                "values stay, steps from %d on are not sent again",
                tracker,
                sent.step,
                run.resumed_at + 1,
            )
        return cls(file, sent)

    @classmethod
    def create(cls, run: TrackedRun, tracker: str, service_run: str) -> SentLog:
        """Create the log of a new run of the service."""
        file = _log_file(run, tracker)
        make_private_directory(file.parent)
        log = cls(file, _Sent(run=service_run))
        log._write()
        return log

    @property
    def run(self) -> str:
        """Name of the service's run."""
        return self._sent.run

    def takes_step(self, step: int) -> bool:
        """Return whether the step must be sent, and mark it as sent."""
        if step <= self._sent.step:
            return False
        self._sent.step = step
        self._write()
        return True

    def takes_evaluation(self, step: int) -> bool:
        """Return whether the evaluation after a step must be sent, and mark it as sent."""
        if step <= self._sent.evaluation:
            return False
        self._sent.evaluation = step
        self._write()
        return True

    def _write(self) -> None:
        written = self._file.with_suffix(".tmp")
        write_private(written, msgspec.json.encode(self._sent))
        written.replace(self._file)


def _log_file(run: TrackedRun, tracker: str) -> Path:
    return run.directory / _FOLDER / f"{tracker}.json"


def _counts(kind: str, counts: Mapping[str, int]) -> dict[str, float]:
    return {f"{kind}/{name}": float(count) for name, count in counts.items()}


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

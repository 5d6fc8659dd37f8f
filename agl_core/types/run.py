"""What a run did: updates, evaluations, losses, and the report."""

from __future__ import annotations

from typing import Any

import msgspec

from agl_core.types.resources import Resources


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """The result of training one policy on one batch."""

    policy: str
    step: int
    version: int
    """Version of the weights that now serve."""
    metrics: dict[str, float] = {}
    rows: dict[str, int] = {}
    """Agent to the sequences of its calls that were trained on, as the engine laid them out."""
    lost: dict[str, int] = {}
    """Cause to what of the batch was not trained on, or was only put in to fill it up."""
    resources: Resources | None = None
    checkpoint: str | None = None


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over tasks with its 95 % interval."""

    mean: float
    low: float
    high: float
    n: int


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of the agents on a set of tasks; failed attempts stay in the denominator."""

    step: int
    score: Estimate
    channels: dict[str, Estimate] = {}
    pass_at_k: dict[int, Estimate] = {}
    """k to the unbiased estimate; a k larger than the samples per task is absent."""
    failed: dict[str, int] = {}
    """Failure kind to attempts."""
    lost: dict[str, int] = {}
    """Cause to model requests that are on no record or gave no answer, and attempts without calls."""
    wall_s: float = 0.0

    def __str__(self) -> str:
        from agl_core.types.summary import evaluation_line  # noqa: PLC0415

        return evaluation_line(self)


class Losses(msgspec.Struct, kw_only=True):
    """Everything that did not become training data, counted by cause."""

    counts: dict[str, int] = {}

    def add(self, cause: str, n: int = 1) -> None:
        if n:
            self.counts[cause] = self.counts.get(cause, 0) + n

    def merge(self, other: Losses) -> None:
        for cause, n in other.counts.items():
            self.add(cause, n)


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a run, as the progress line shows it and as it is stored."""

    step: int
    steps: int
    reward: float
    """Mean weighted return of the step's attempts, penalties included."""
    channels: dict[str, float] = {}
    rollouts: int = 0
    calls: int = 0
    tokens: int = 0
    """Sampled tokens."""
    failures: dict[str, int] = {}
    lost: dict[str, int] = {}
    breaks: dict[str, dict[str, int]] = {}
    """Trained agent to likely cause to calls whose prompt continued no earlier one of their run.
    They are trained all the same, on a path of their own."""
    rows: dict[str, int] = {}
    """Agent to the sequences of its calls that were trained on."""
    metrics: dict[str, float] = {}
    wall_s: float = 0.0


class RewardTrend(msgspec.Struct, frozen=True, kw_only=True):
    """How the reward moved over a run."""

    first: float
    """Mean over the first five steps; over the first half of a run of fewer than ten."""
    last: float
    """The same of the last ones: no step is in both, unless there is only one."""


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences that a run trained on."""

    by_agent: dict[str, int] = {}


class Report(msgspec.Struct, kw_only=True):
    """The outcome of a run: where the weights lie, what was reached, what was lost."""

    run_id: str
    directory: str
    steps: list[StepReport] = []
    evaluations: list[Evaluation] = []
    policies: dict[str, dict[str, Any]] = {}
    """Policy name to ``{"sha256_before", "sha256_after", "version", "path"}``."""
    lost: dict[str, int] = {}
    breaks: dict[str, dict[str, int]] = {}
    """Those of all steps."""
    calls: int = 0
    reward: RewardTrend | None = None
    """None before the first step."""
    rows: Rows = Rows()
    seconds_per_step: float | None = None
    """Median; None before the first step."""
    wall_s: float = 0.0
    best: str | None = None
    """Directory of the checkpoint with the best evaluation, or the last one without evaluations."""

    def summary(self) -> str:
        """What the run came to, in a few lines; ``print(report)`` shows the same."""
        from agl_core.types.summary import summary_lines  # noqa: PLC0415

        return "\n".join(summary_lines(self))

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """The summary with a plot of the reward per step, where a notebook shows the report."""
        from agl_core.types.summary import report_html  # noqa: PLC0415

        return report_html(self)

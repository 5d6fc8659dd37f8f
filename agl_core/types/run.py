"""Results of a run: updates, evaluations, losses, breaks, and the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from agl_core.types._packed import Floats
from agl_core.types.rollout import Resources

Cause = Literal[
    "tools",
    "system",
    "summary",
    "trimmed",
    "edited",
    "answer",
    "thinking",
    "text",
    "tool_calls",
    "whitespace",
    "template",
    "tokens",
    "other",
]

MEANING: Final[Mapping[str, str]] = {
    "tools": "the tools that are offered changed",
    "system": "the system prompt changed",
    "summary": "earlier messages were replaced by a new one, such as a summary",
    "trimmed": "earlier messages were left out",
    "edited": "an earlier message was edited",
    "answer": "the answer was not sent back",
    "thinking": "thinking was stripped from the history",
    "text": "text beside tool calls was left out of the history",
    "tool_calls": "tool calls were rewritten",
    "whitespace": "white space changed",
    "template": "the chat template renders the same messages differently",
    "tokens": "the same text was tokenised differently",
    "other": "another conversation began",
}


def sum_breaks(found: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Sum breaks by agent and cause."""
    total: dict[str, dict[str, int]] = {}
    for agent, causes in (item for each in found for item in each.items()):
        of_agent = total.setdefault(agent, {})
        for cause, count in causes.items():
            of_agent[cause] = of_agent.get(cause, 0) + count
    return total


class TokenNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of each loss term of a batch, in the batch's order; NaN if one was not computed."""

    entropies: Floats
    """Entropy of the distribution of the target before the update, in nats, after temperature."""
    before: Floats
    """Log-probability of the target before the update, after temperature."""
    after: Floats
    """Log-probability of the target after the update, after temperature."""


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """The result of training one policy on one batch."""

    policy: str
    step: int
    version: int
    """Version of the weights that now serve."""
    metrics: dict[str, float] = {}
    rows: dict[str, int] = {}
    """Agent to the number of its sequences that were trained on, in the engine's layout."""
    lost: dict[str, int] = {}
    """Cause to the number of sequences that were not trained on, or only filled up the batch."""
    tokens: TokenNumbers | None = None
    """None if the engine does not compute them, or was not asked to."""
    resources: Resources | None = None
    checkpoint: str | None = None


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over tasks with its 95 % confidence interval."""

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
    """k to the unbiased estimate; a k larger than the samples per task is missing."""
    failed: dict[str, int] = {}
    """Failure kind to number of attempts."""
    lost: dict[str, int] = {}
    """Cause to number of model requests without record or answer, and of attempts without calls."""
    wall_s: float = 0.0
    phase: int | None = None
    """Number of the prompt phase that it follows; None after steps and at the start."""
    resources_version: int = 0
    """Version of the resources of its rollouts; 0 if unknown."""
    tasks: dict[str, float] = {}
    """Task id to score, in evaluations apart from a training; these are compared in pairs."""

    def __str__(self) -> str:
        return evaluation_line(self)


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a prompt phase."""

    texts: dict[str, str]
    """Name of each tuned prompt to the best text."""
    before: Estimate | None = None
    """Score of the incumbent on the validation tasks."""
    after: Estimate | None = None
    """Score of the best candidate on the validation tasks."""
    rollouts: int = 0
    """Number of rollouts that were used."""
    candidates: int = 0
    """Number of candidates that were evaluated, the incumbent included."""
    calls: dict[str, int] = {}
    """Number of calls of ``editor`` and ``critic`` models."""
    reason: str = ""
    """Why the phase ended before its budget was used; empty otherwise."""


class PromptReport(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt at the end of a run."""

    text: str
    agents: list[str] = []
    captured: bool = False
    tool: str = ""
    before: Estimate | None = None
    """Score on the validation tasks at the start of the first phase that tuned it; None: none did."""
    after: Estimate | None = None
    """Best score on the validation tasks in the phases that tuned it."""


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
    """The results of one step of a run, for the progress line and the store."""

    step: int
    steps: int
    reward: float | None
    """Mean weighted return of the step's attempts, including penalties; None in a step without
    rollouts, such as one of ``sft``."""
    channels: dict[str, float] = {}
    rollouts: int = 0
    calls: int = 0
    tokens: int = 0
    """Sampled tokens."""
    failures: dict[str, int] = {}
    lost: dict[str, int] = {}
    breaks: dict[str, dict[str, int]] = {}
    """Trained agent to likely cause to number of breaks. Such calls are trained on a new path."""
    rows: dict[str, int] = {}
    """Agent to the number of its sequences that were trained on."""
    metrics: dict[str, float] = {}
    wall_s: float = 0.0


class RewardTrend(msgspec.Struct, frozen=True, kw_only=True):
    """Mean rewards at the beginning and at the end of a run."""

    first: float
    """Mean over the first five steps, or over the first half of a run with fewer than ten."""
    last: float
    """The same for the last steps; no step is in both, except for a run of one step."""


class RowCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of sequences that a run trained on."""

    by_agent: dict[str, int] = {}


class Report(msgspec.Struct, kw_only=True):
    """The outcome of a run: weights, scores and losses."""

    run_id: str
    directory: str
    steps: list[StepReport] = []
    evaluations: list[Evaluation] = []
    policies: dict[str, dict[str, Any]] = {}
    """Policy name to ``{"sha256_before", "sha256_after", "version", "path"}``."""
    agents: dict[str, dict[str, Estimate]] = {}
    """Trained agent, or glob of agents, to ``before`` and ``after``: its score in the first and the
    last evaluation, which is the mean on the reward channel of its name, or else of all rewards."""
    prompts: dict[str, PromptReport] = {}
    rollouts: int = 0
    """Number of rollouts of steps and prompt phases."""
    editor_calls: int = 0
    """Number of calls of editor and critic models."""
    lost: dict[str, int] = {}
    breaks: dict[str, dict[str, int]] = {}
    """Sum over all steps."""
    calls: int = 0
    reward: RewardTrend | None = None
    """None before the first step with rollouts."""
    rows: RowCounts = RowCounts()
    seconds_per_step: float | None = None
    """Median; None before the first step."""
    wall_s: float = 0.0
    best: str | None = None
    """Directory of the checkpoint with the best evaluation, or the last one without evaluations."""

    def summary(self) -> str:
        """Return the outcome in a few lines; ``print(report)`` shows the same."""
        return "\n".join(summary_lines(self))

    def __str__(self) -> str:
        return self.summary()


Severity = Literal["ok", "not checked", "warning", "error"]
"""``not checked``: the check cannot decide, which is not the same as ok."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check: what was measured, and the fix."""

    check: str
    """Name of the check, such as ``rewards.vary``; a plugin's begins with the plugin's name."""
    severity: Severity
    measured: str
    """One or two sentences with the measured numbers and names."""
    fix: str = ""
    """What to change; empty if nothing needs to be changed."""
    figures: dict[str, Any] = {}
    """The numbers and names of `measured` for programs; any JSON values."""

    @classmethod
    def of(
        cls, check: str, severity: Severity, measured: str, *, fix: str, figures: dict[str, Any]
    ) -> Finding:
        """Make a finding without its fix if the severity is ``ok``.

        So a check can always state the fix.
        """
        return cls(
            check=check,
            severity=severity,
            measured=measured,
            fix="" if severity == "ok" else fix,
            figures=figures,
        )


def evaluation_line(evaluation: Evaluation) -> str:
    """Return one evaluation as a line of text."""
    place = f"step {evaluation.step}" if evaluation.phase is None else f"phase {evaluation.phase}"
    parts = [f"eval at {place}: {estimate(evaluation.score)}"]
    parts += [f"{name} {estimate(value)}" for name, value in sorted(evaluation.channels.items())]
    parts += [f"pass@{k} {estimate(value)}" for k, value in sorted(evaluation.pass_at_k.items())]
    if evaluation.failed:
        parts.append(f"failed {counts(evaluation.failed)}")
    if evaluation.lost:
        parts.append(f"lost {counts(evaluation.lost)}")
    return "  ".join(parts)


def summary_lines(report: Report, *, scores: bool = True) -> list[str]:
    """Return the lines of a run's summary.

    Args:
        report: The run's report.
        scores: False to leave out the scores, if they have been shown already.
    """
    tuned = any(prompt.after for prompt in report.prompts.values())
    size = [f"{len(report.steps)} steps, {report.calls} calls"] if report.steps or not tuned else []
    size += [f"{report.rollouts} rollouts, {report.editor_calls} editor calls"] if tuned else []
    lines = [f"run {report.run_id}: {', '.join(size)}, {clock(report.wall_s)}"]
    if scores and report.evaluations:
        first, last = report.evaluations[0], report.evaluations[-1]
        lines.append(f"score {estimate(first.score)} -> {estimate(last.score)}")
    if report.reward is not None:
        lines.append(f"reward {report.reward.first:.3f} -> {report.reward.last:.3f}")
    for name, prompt in report.prompts.items():
        if prompt.before is not None and prompt.after is not None:
            lines.append(f"prompt {name} {estimate(prompt.before)} -> {estimate(prompt.after)}")
    lines.append(f"lost {counts(report.lost) or 'nothing'}")
    for agent, causes in sorted(report.breaks.items()):
        lines += [
            f"{agent}: {count} prompts continued no earlier one: {MEANING.get(cause, cause)}"
            for cause, count in sorted(causes.items())
        ]
    learned = "weights" if report.steps or not tuned else "prompts"
    lines.append(f"{learned} {report.best or 'none: no checkpoint was written'}")
    return lines


def estimate(value: Estimate) -> str:
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}] n={value.n}"


def counts(values: Mapping[str, int]) -> str:
    return " ".join(f"{cause}={count}" for cause, count in sorted(values.items()))


def clock(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"

"""Findings on rewards: whether they arrive, and whether their differences give an advantage."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from agl_core.adapters import forest
from agl_core.errors import TrainingError
from agl_core.interfaces import AdaptedAttempt, Algorithm, AttemptRecord
from agl_core.tracing import bounded
from agl_core.training import Batcher, failure_of, group_attempts
from agl_core.types import FailureKind, Finding, Losses, TrajectoryGroup
from agl_doctor._evidence import Evidence

_MOSTLY: Final = 0.5
"""Share of groups without a signal above which the finding is a warning."""

_MAX_SHOWN: Final = 200
"""Most characters of a reason in a finding."""


def rewards(evidence: Evidence, algorithm: Algorithm | None) -> list[Finding]:
    """Return all findings on rewards; only an algorithm needs ones that vary in a group."""
    return [_arrive(evidence), *([] if algorithm is None else [_vary(evidence, algorithm)])]


def _arrive(evidence: Evidence) -> Finding:
    failed = [failure_of(record) for record in evidence.records]
    messages = [str(error) for error in evidence.reward_errors]
    messages += [f.message for f in failed if f is not None and f.kind is FailureKind.REWARD]
    scored = list(evidence.scored.values())
    if messages:
        return Finding(
            check="rewards.arrive",
            severity="error",
            measured=f"{len(messages)} of {len(evidence.records)} attempts have no usable reward. "
            f"The first: {messages[0]}",
            fix="Return a finite number, or one per channel, for every attempt; see what the "
            "message asks for.",
            figures={"unusable": len(messages), "attempts": len(evidence.records)},
        )
    if not scored:
        return Finding(
            check="rewards.arrive",
            severity="not checked",
            measured="No attempt reached its reward.",
            fix="See capture.exact and attempts.fail.",
        )
    return _arrived(scored)


def _arrived(scored: Sequence[AdaptedAttempt]) -> Finding:
    channels: dict[str, list[float]] = defaultdict(list)
    for attempt in scored:
        for channel, value in attempt.channels.items():
            channels[channel].append(value)
    ranges = "; ".join(
        f"{channel} from {min(values):g} to {max(values):g}, mean {fmean(values):g}"
        for channel, values in sorted(channels.items())
    )
    return Finding(
        check="rewards.arrive",
        severity="ok",
        measured=f"{len(scored)} attempts were rewarded: {ranges}.",
        figures={
            "channels": {
                channel: {"min": min(values), "max": max(values), "mean": fmean(values)}
                for channel, values in channels.items()
            }
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signal:
    """What training could learn from a group of attempts."""

    moves: bool
    alike: bool
    """Whether all attempts sampled exactly the same tokens."""
    alone: bool
    """Whether only one attempt is left."""


def _vary(evidence: Evidence, algorithm: Algorithm) -> Finding:
    try:
        signals = _signals(evidence, algorithm)
    except TrainingError as error:
        return Finding(
            check="rewards.vary",
            severity="error",
            measured=str(error),
            fix="Choose another algorithm, or correct its options.",
        )
    if not signals:
        return Finding(
            check="rewards.vary",
            severity="not checked",
            measured="No group has two attempts whose rewards can be compared.",
            fix="See rewards.arrive, capture.exact and attempts.fail.",
        )
    flat = [signal for signal in signals if not signal.moves]
    alike = sum(signal.alike for signal in flat)
    measured = f"{len(flat)} of {len(signals)} groups have no signal"
    if flat:
        measured += ": all attempts at the task earned the same"
        measured += f"; in {alike} the answers were the same to the token" if alike else ""
    alone = sum(signal.alone for signal in flat)
    measured += f"; in {alone} only one attempt is left" if alone else ""
    figures = {"groups": len(signals), "without_signal": len(flat), "alike": alike, "alone": alone}
    severity = "ok"
    if len(flat) == len(signals):
        severity = "error"
    elif len(flat) > _MOSTLY * len(signals):
        severity = "warning"
    return Finding(
        check="rewards.vary",
        severity=severity,
        measured=f"{measured}." + (_reason(evidence.succeeded) if severity != "ok" else ""),
        fix=_fix(alike=bool(alike)) if severity != "ok" else "",
        figures=figures,
    )


def _reason(records: Sequence[AttemptRecord]) -> str:
    """Return the most frequent reason of the rewards as a sentence; empty if none has one."""
    reasons = Counter(each.why for record in records for each in record.rewards if each.why)
    if not reasons:
        return ""
    ((why, count),) = reasons.most_common(1)
    shown, _ = bounded(" ".join(why.split()), _MAX_SHOWN)
    return f" The most frequent reason, {count} of {reasons.total()}: {shown}"


def _fix(*, alike: bool) -> str:
    if alike:
        return (
            "Let answers differ: set rollout.temperature to 1, and switch off response caches and "
            "seeds that the agent fixes itself."
        )
    return (
        "Nothing is learned from such a group. Give partial credit, take tasks that are sometimes "
        "solved, or raise algorithm.group_size; --tasks and --samples look at more of them."
    )


def _signals(evidence: Evidence, algorithm: Algorithm) -> list[_Signal]:
    """Return one signal per group: from the algorithm, or from scores if there are no tokens."""
    groups = group_attempts(list(evidence.adapted.values()), Losses())
    if groups:
        return [_signal(group, algorithm) for group in groups]
    scores: dict[str, list[float]] = defaultdict(list)
    for attempt in evidence.scored.values():
        scores[attempt.group_id].append(attempt.score)
    return [
        _Signal(moves=len(set(of_group)) > 1, alike=False, alone=False)
        for of_group in scores.values()
        if len(of_group) > 1
    ]


def _signal(group: TrajectoryGroup, algorithm: Algorithm) -> _Signal:
    _, lost = Batcher(algorithm, forest).build([group], step=0)
    answers = {
        tuple(token for path in attempt for call in path.calls for token in call.response_ids)
        for attempt in group.trajectories
    }
    attempts = len(group.trajectories)
    return _Signal(
        moves=not lost.counts.get("groups_without_signal"),
        alike=attempts > 1 and len(answers) == 1,
        alone=attempts == 1,
    )

"""Findings on how attempts ended, how long they took, and what they lost."""

from __future__ import annotations

from collections import Counter
from typing import Final

from agl_core import semconv
from agl_core.interfaces import AttemptRecord
from agl_core.runner import UNBLOCK
from agl_core.training import failure_of
from agl_core.types import AttemptStatus, Failure, Finding, Losses
from agl_doctor._evidence import Evidence
from agl_doctor._requests import is_request, requests
from agl_doctor._tools import UNSHOWN

_SLOW: Final = 0.5
"""Share of the deadline above which an attempt is slow: training runs more attempts in parallel."""
_HARMLESS: Final = frozenset({"calls_of_opponents", "calls_untrainable", "superseded_tries"})
"""Losses that the program asked for, or that a retry replaced."""
_SAMPLING: Final = "sampling_"
_RETRIED: Final = "attempts_retried_"
"""Prefix of losses that the findings on failures already report."""


def attempts(evidence: Evidence) -> list[Finding]:
    """Return all findings on whole attempts."""
    return [
        _fail(evidence),
        *_retried(evidence),
        _time(evidence),
        *_blocked(evidence),
        _exact(evidence),
        *_sockets(evidence),
        *requests(evidence),
        *_losses(evidence.losses),
    ]


def _fail(evidence: Evidence) -> Finding:
    failures = [f for f in map(failure_of, evidence.records) if f is not None]
    total = len(evidence.records)
    if not failures:
        return Finding(
            check="attempts.fail",
            severity="ok",
            measured=f"{total} of {total} attempts succeeded.",
            figures={"attempts": total, "failed": {}},
        )
    return Finding(
        check="attempts.fail",
        severity="error" if len(failures) == total else "warning",
        measured=f"{len(failures)} of {total} attempts failed: {_by_kind(failures)}.",
        fix="Correct what raised; --debug shows the traceback. rollout.failures says what becomes "
        "of each kind in training.",
        figures={
            "attempts": total,
            "failed": dict(Counter(failure.kind.value for failure in failures)),
            "traceback": failures[0].traceback,
        },
    )


def _by_kind(failures: list[Failure]) -> str:
    """Return each kind of failure with its number and its first message."""
    first: dict[str, str] = {}
    for failure in failures:
        first.setdefault(failure.kind.value, failure.message)
    counts = Counter(failure.kind.value for failure in failures)
    return "; ".join(f"{kind} {count} ({first[kind]})" for kind, count in counts.items())


def _retried(evidence: Evidence) -> list[Finding]:
    earlier = [
        attempt.failure
        for record in evidence.records
        for attempt in record.rollout.attempts[:-1]
        if attempt.failure is not None
    ]
    if not earlier:
        return []
    return [
        Finding(
            check="attempts.retry",
            severity="warning",
            measured=f"{len(earlier)} attempts failed and were tried again: {_by_kind(earlier)}.",
            fix="Retries cost time and hide an unsteady backend or worker: see its log.",
            figures={"retried": len(earlier)},
        )
    ]


def _time(evidence: Evidence) -> Finding:
    limit_s = evidence.config.rollout.timeout_s
    took = [seconds for seconds in map(_seconds, evidence.records) if seconds is not None]
    late = sum(r.attempt.status is AttemptStatus.TIMED_OUT for r in evidence.records)
    longest = max(took, default=0.0)
    figures = {"longest_s": longest, "timeout_s": limit_s, "timed_out": late}
    if not took:
        return Finding(
            check="attempts.time",
            severity="not checked",
            measured="No attempt has a duration.",
            figures=figures,
        )
    slow = longest >= _SLOW * limit_s
    says = f"The longest attempt took {longest:.1f} s of the {limit_s:g} s it may take"
    return Finding(
        check="attempts.time",
        severity="error" if late else "warning" if slow else "ok",
        measured=f"{says}; {late} of {len(evidence.records)} ran out of time."
        if late
        else f"{says}.",
        fix="Raise rollout.timeout_s or make the agent faster: training runs "
        f"{evidence.config.rollout.concurrency} attempts at a time (rollout.concurrency), which are "
        "slower than these."
        if late or slow
        else "",
        figures=figures,
    )


def _blocked(evidence: Evidence) -> list[Finding]:
    """Report each function that blocked the event loop of async agents and rewards."""
    return [
        Finding(
            check="agents.block",
            severity="warning",
            measured=f"While attempts ran, {stall}. Other attempts had to wait.",
            fix=f"{UNBLOCK.format(function=stall.function)}.",
            figures={
                "function": stall.function,
                "place": stall.place,
                "seconds": stall.seconds,
                "stack": stall.stack,
            },
        )
        for stall in evidence.stalls
    ]


def _seconds(record: AttemptRecord) -> float | None:
    attempt = record.attempt
    if attempt.ended_at is None or not attempt.started_at:
        return None
    return max(attempt.ended_at - attempt.started_at, 0.0)


def _exact(evidence: Evidence) -> Finding:
    errors, total = evidence.capture_errors, len(evidence.succeeded)
    if errors:
        return Finding(
            check="capture.exact",
            severity="error",
            measured=f"{len(errors)} of {total} attempts were not captured exactly. "
            f"The first: {errors[0]}",
            fix="Do what the message asks for: such an attempt is never trained on, and more than "
            f"capture.max_error_share = {evidence.config.capture.max_error_share:g} stop the run.",
            figures={"attempts": total, "inexact": len(errors)},
        )
    return Finding(
        check="capture.exact",
        severity="ok" if total else "not checked",
        measured=f"{total} of {total} attempts were joined exactly, call by call."
        if total
        else "No attempt succeeded.",
        fix="" if total else "See attempts.fail.",
        figures={"attempts": total, "inexact": 0},
    )


def _sockets(evidence: Evidence) -> list[Finding]:
    """Report model calls over a WebSocket, which the gateway does not see."""
    asked = [
        span
        for record in evidence.records
        for span in record.spans
        if semconv.AGL_WEBSOCKET in span.attributes
    ]
    if not asked:
        return []
    addresses = sorted({str(span.attributes[semconv.AGL_WEBSOCKET]) for span in asked})
    agents = sorted({span.agent or "" for span in asked})
    return [
        Finding(
            check="capture.websocket",
            severity="error" if any(map(evidence.trains, agents)) else "warning",
            measured=f"Models were called {len(asked)} times over a WebSocket, of which the gateway "
            f"records no token: {', '.join(addresses)}, by "
            f"{', '.join(agent or 'no agent' for agent in agents)}.",
            fix="Call models of trained agents over HTTP; put other sessions into "
            "agl.agent_scope(name, trainable=False).",
            figures={"connections": len(asked), "addresses": addresses, "agents": agents},
        )
    ]


def _losses(losses: Losses) -> list[Finding]:
    sampling = {c: n for c, n in losses.counts.items() if c.startswith(_SAMPLING)}
    others = {
        cause: count
        for cause, count in losses.counts.items()
        if cause not in sampling and not cause.startswith(_RETRIED) and not is_request(cause)
        if cause != UNSHOWN
    }
    found: list[Finding] = []
    if sampling:
        listed = ", ".join(f"{cause.removeprefix(_SAMPLING)} {n}" for cause, n in sampling.items())
        found.append(
            Finding(
                check="sampling.plain",
                severity="warning",
                measured=f"Answers to be trained on do not follow the model's plain distribution, "
                f"by what their request asked for: {listed} calls.",
                fix="In training, send top_p 1 and no top_k, penalties or logit_bias; set "
                "rollout.temperature above 0.",
                figures={"calls": sampling},
            )
        )
    harmless = others.keys() <= _HARMLESS
    listed = ", ".join(f"{cause} {count}" for cause, count in sorted(others.items()))
    found.append(
        Finding(
            check="losses",
            severity="ok" if harmless else "warning",
            measured=f"Not used for training: {listed}." if others else "Nothing else was lost.",
            fix="" if harmless else "docs/capture.md says what each cause means.",
            figures={"counts": others},
        )
    )
    return found

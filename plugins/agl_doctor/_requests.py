"""Findings on model requests without a record or an answer: the meaning and fix of each cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agl_core.types import Finding
from agl_doctor._evidence import Evidence

_CAUSES: Final[Mapping[str, tuple[str, str]]] = {
    "calls_without_identity": (
        "came without the identity of an attempt, and got 400",
        (
            "Run threads of your own with contextvars.copy_context().run or asyncio.to_thread. Give "
            "HTTP clients other than httpx the base URL of agl_core.tracing.child_environment()."
        ),
    ),
    "calls_with_conflicting_identity": (
        "named another attempt or agent in their headers than in their URL, and got 400",
        "Make one client for each attempt, or name the agent in only one of the two.",
    ),
    "calls_with_wrong_key": (
        "came with a key that does not open their attempt, and got 403",
        "Make one client for each attempt, from agl.current().llm or child_environment().",
    ),
    "late_calls": (
        "came after their attempt had ended",
        "Let the agent wait for its threads and tasks before it returns.",
    ),
    "calls_unsent": (
        "failed or were cancelled before the gateway recorded them",
        "Give the client more time and more connections, or cancel less.",
    ),
    "calls_incomplete": (
        "were cancelled, or were answered by a stream that was not read to its end",
        "Read every stream to its finish reason, and raise the program's own time limits.",
    ),
    "calls_inexact": (
        "of agents that are not trained were recorded ambiguously",
        "Send one request in each call scope.",
    ),
    "calls_refused": (
        "were answered with an HTTP error",
        "agl trace shows each with its error.",
    ),
    "sent_elsewhere_": (
        "of agents that are not trained, or of no agent, went to another address",
        (
            "Nothing needs to be done if this is intended. Name the agent with agl.agent_scope(name) "
            "if one to train is among them; capture.elsewhere = 'refuse' forbids them, except to capture.allow_hosts."
        ),
    ),
    "refused_elsewhere_": (
        "to another address were refused before they left",
        (
            "Ask with a client of OpenAI chat completions or Responses over httpx, put what is not to "
            "be trained into agl.agent_scope(name, trainable=False), or see capture.elsewhere."
        ),
    ),
}
"""Texts by cause, or by the prefix of causes that contain an agent and an address."""


def requests(evidence: Evidence) -> list[Finding]:
    """Return one warning per kind of loss, and one on attempts that sent no model request."""
    found = [finding for cause in _CAUSES if (finding := _lost(evidence, cause)) is not None]
    return [*found, *_silent(evidence)]


def is_request(cause: str) -> bool:
    """Return whether this module has a finding on a loss."""
    return any(cause == known or _varies(known, cause) for known in _CAUSES)


def _varies(known: str, cause: str) -> bool:
    return known.endswith("_") and cause.startswith(known)


def _lost(evidence: Evidence, known: str) -> Finding | None:
    counts = {
        cause: count
        for cause, count in sorted(evidence.losses.counts.items())
        if cause == known or _varies(known, cause)
    }
    if not counts:
        return None
    what, fix = _CAUSES[known]
    details = ", ".join(
        f"{cause.removeprefix(known).replace('_to_', ' to ')} {count}"
        for cause, count in counts.items()
    )
    listed = f": {details.strip()}" if known.endswith("_") else ""
    return Finding(
        check="requests.lost",
        severity="warning",
        measured=f"{sum(counts.values())} model requests {what}{listed}.",
        fix=fix,
        figures={"cause": known.rstrip("_"), "counts": counts},
    )


def _silent(evidence: Evidence) -> list[Finding]:
    asked = {owned.call.attempt_id for owned in evidence.calls}
    silent = sum(record.attempt.id not in asked for record in evidence.succeeded)
    if not silent or not asked:  # if no attempt made a call, agents.speak reports it
        return []
    return [
        Finding(
            check="attempts.calls",
            severity="warning",
            measured=f"{silent} of {len(evidence.succeeded)} attempts succeeded without a model call "
            f"on record.",
            fix="See whether the agent caught the error of a call and answered without a model.",
            figures={"attempts": len(evidence.succeeded), "silent": silent},
        )
    ]

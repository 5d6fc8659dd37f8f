"""See whether an attempt with refused calls came to nothing because its prompts did not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agl_core.interfaces import Store
from agl_core.runner.attempt import Ending
from agl_core.types import Attempt, AttemptStatus, FailureKind, Span, SpanKind
from agl_core.types.overflow import none_fit, overflowed, told_by_calls


async def reconsidered(
    store: Store, attempt: Attempt, ending: Ending, spans: Sequence[Span]
) -> Ending:
    """What a sealed attempt comes to, once the gateway's records are looked at.

    Only they tell of a prompt that did not fit where the agent or its framework kept no word of it
    or took the refusal for an answer. They are read where a call failed and nothing else is known
    to be at fault, which is rare.

    Args:
        store: Has the gateway's records.
        attempt: The sealed attempt.
        ending: What the agent made of it.
        spans: The client's.
    """
    if not any(span.kind is SpanKind.LLM and span.status == "error" for span in spans):
        return ending
    if ending.failure is None and ending.status is not AttemptStatus.SUCCEEDED:
        return ending
    if ending.failure is not None and ending.failure.kind is not FailureKind.AGENT:
        return ending
    recorded = await store.spans([attempt.rollout_id], attempt_id=attempt.id)
    calls = [span.call for span in recorded if span.call is not None]
    if ending.failure is not None:
        return replace(ending, failure=told_by_calls(ending.failure, calls))
    agents = overflowed(calls)
    if not agents:
        return ending
    return replace(ending, status=AttemptStatus.FAILED, failure=none_fit(agents))

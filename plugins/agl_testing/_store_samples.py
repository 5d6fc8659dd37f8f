"""Small records for the tests of the store contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agl_core.clocks import new_id
from agl_core.interfaces import Store
from agl_core.types import (
    AttemptStatus,
    Choice,
    Claim,
    Failure,
    FailureKind,
    Limits,
    ModelCall,
    Rollout,
    Span,
    SpanKind,
    Task,
    pack_floats,
    pack_ints,
)


def rollout(**fields: Any) -> Rollout:
    """Return a small rollout request with a new id."""
    given: dict[str, Any] = {"id": new_id("ro"), "task": Task(id="t", input="2+2"), "run_id": "run"}
    return Rollout(**{**given, **fields})


def span(claim: Claim, **fields: Any) -> Span:
    """Return a message span of the claimed attempt."""
    given: dict[str, Any] = {
        "id": new_id("sp"),
        "rollout_id": claim.rollout.id,
        "attempt_id": claim.attempt.id,
        "kind": SpanKind.MESSAGE,
        "name": "note",
    }
    return Span(**{**given, **fields})


def model_call(claim: Claim, **fields: Any) -> Span:
    """Return an LLM span with tokens."""
    call = ModelCall(
        id=new_id("ca"),
        rollout_id=claim.rollout.id,
        attempt_id=claim.attempt.id,
        agent="writer",
        messages=[{"role": "user", "content": "2+2"}],
        prompt_token_ids=pack_ints([1, 2, 3]),
        choices=[
            Choice(
                token_ids=pack_ints([4, 5]),
                logprobs=pack_floats([-0.5, -0.25]),
                text="4",
                finish_reason="stop",
            )
        ],
        logprobs_mode="processed",
        complete=True,
    )
    return span(claim, kind=SpanKind.LLM, agent="writer", call_id=call.id, call=call, **fields)


def failure(kind: FailureKind) -> Failure:
    return Failure(kind=kind, message=f"A failure of kind {kind.value}")


async def begin(store: Store, *, worker: str = "w1", **fields: Any) -> Claim:
    """Queue one rollout and claim it."""
    queued = rollout(**fields)
    await store.enqueue([queued])
    (claim,) = await store.claim(worker, timeout_s=60.0)
    assert claim.rollout.id == queued.id
    return claim


async def begin_all(store: Store, n: int, **fields: Any) -> list[Claim]:
    """Queue and claim several rollouts."""
    await store.enqueue([rollout(**fields) for _ in range(n)])
    claims = await store.claim("w1", limit=n, timeout_s=60.0)
    assert len(claims) == n
    return claims


async def succeed(store: Store, claim: Claim, spans: Sequence[Span] = ()) -> None:
    await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED, spans=spans)


def short(*, max_attempts: int = 1) -> Limits:
    """Return limits whose lease expires almost immediately."""
    return Limits(timeout_s=60.0, lease_s=0.02, max_attempts=max_attempts)

"""Attempt contexts for the benchmarks' agents, like those of the runner."""

from __future__ import annotations

import time

from agl_core.clocks import new_id
from agl_core.tracing import AttemptContext, Recorder, origins_of
from agl_core.types import LLM, Attempt, Resources, Rollout, Task


def attempt_context(url: str) -> AttemptContext:
    """Return a new context whose model is at `url`."""
    rollout = Rollout(id=new_id("ro"), task=Task(id="t"), run_id="bench")
    attempt = Attempt(id=new_id("at"), rollout_id=rollout.id, worker="bench", fence=1)
    return AttemptContext(
        rollout=rollout,
        attempt=attempt,
        llm=LLM(model="policy", base_url=url),
        resources=Resources(),
        recorder=Recorder(rollout.id, attempt.id),
        origins=origins_of(url),
        deadline=time.monotonic() + 600,
    )

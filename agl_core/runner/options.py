"""What a runner can be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agl_core.types import Attempt, Rollout, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """How a runner works, and who watches it."""

    concurrency: int = 32
    """Attempts in flight at once."""
    heartbeat_s: float | None = None
    """Between heartbeats; a third of the shortest lease in flight when None."""
    grace_s: float = 1.0
    """How long cancelled user code may take to end before it is abandoned."""
    outside: bool = False
    """It serves a run of another process: what it loses travels there with the attempts that it
    ends, and attempts that it gives up are LOST, for another runner to take, not CANCELLED."""
    max_abandoned: int | None = None
    """With more pieces of user code that could not be stopped, it claims nothing more and ends."""
    on_started: Callable[[Rollout, Attempt], None] | None = None
    """Called before the agent; what it raises stops the runner."""
    on_finished: Callable[[Rollout, Attempt, Sequence[Span]], None] | None = None
    """Called with the stored attempt and its tracing spans; what it raises stops the runner."""

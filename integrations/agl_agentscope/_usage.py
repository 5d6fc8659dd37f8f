"""Detect agent objects whose memory mixes several replies or rollouts; warn once for each."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

from agl_agentscope._identity import ByIdentity
from agl_core.tracing import AttemptContext, guarded

_log = logging.getLogger(__name__)
SHARED: Final = "agl.agentscope.shared"
"""On the span of a reply: ``concurrent`` or ``carried``, see `_WHY`."""
CLOCK: Final = "agl.agentscope.clock"
"""On the span of a reply: True if the prompt has the time of day, `PLAN` if it has the times of a
plan."""
PLAN: Final = "plan"
FOLDS: Final = "agl.agentscope.folds"
"""On the span of a reply in AgentScope 1: whether its formatter writes the conversation into one
message."""
INTERRUPTED: Final = "agl.agentscope.interrupted"
"""On the span of a reply in AgentScope 1: whether it was cancelled but returned a message."""
PARKED: Final = "agl.agentscope.parked"
"""On the span of a reply in AgentScope 2: tools for which it waits for the user's permission."""

_WHY: Final = {
    "concurrent": "answers twice at the same time, and both replies write into one memory",
    "carried": "was used in another rollout before, and remembers it",
}


@dataclass(slots=True)
class _Known:
    """State of one agent object."""

    open: int = 0
    attempt: str = ""
    run_id: str | None = None
    reached: set[str] = field(default_factory=set[str])
    """Ids of the tool calls that a tool has taken and not answered."""
    said: set[str] = field(default_factory=set[str])


class ReplyingAgents:
    """The agents that reply and their attempts; an entry is removed with its agent object."""

    def __init__(self) -> None:
        self._agents: ByIdentity[_Known] = ByIdentity()
        self._lock = Lock()

    @guarded("agentscope")
    def enter(self, agent: Any, context: AttemptContext, *, remembers: bool) -> str:
        """Record that an agent begins to reply.

        Returns:
            The error in its use, a key of `_WHY`; empty if there is none.
        """
        attempt = f"{context.rollout.id}/{context.attempt.id}"
        with self._lock:
            known = self._known(agent)
            wrong = "concurrent" if known.open else ""
            if remembers and known.attempt not in ("", attempt):
                wrong = wrong or "carried"
            known.open += 1
            known.attempt = attempt
        if wrong:
            self._say(
                known, wrong, f"Agent {agent.name!r} {_WHY[wrong]}: make one for each rollout"
            )
        return wrong

    @guarded("agentscope")
    def leave(self, agent: Any) -> None:
        """Record that an agent has replied."""
        with self._lock:
            known = self._agents.get(agent)
            if known is not None:
                known.open -= 1

    @guarded("agentscope")
    def warn_of_clock(self, agent: Any, fix: str) -> None:
        """Warn, once for each agent, that its prompts contain the time of day."""
        self._say(
            self._known(agent),
            "clock",
            f"Agent {agent.name!r} has the time of day in its prompt, so that no rollout can be "
            f"repeated: {fix}",
        )

    def began(self, agent: Any, run_id: str | None) -> None:
        """Store the id of the agent's run, for replies that continue it."""
        with self._lock:
            self._known(agent).run_id = run_id

    def run_id(self, agent: Any, context: AttemptContext) -> str | None:
        """Return the id of the agent's last run in this attempt; None if there is none."""
        known = self._agents.get(agent)
        if known is None or known.attempt != f"{context.rollout.id}/{context.attempt.id}":
            return None
        return known.run_id

    def reached(self, agent: Any, call_id: str) -> None:
        """Record that a tool has taken this call."""
        with self._lock:
            self._known(agent).reached.add(call_id)

    def forget_reached(self, agent: Any, call_id: str) -> bool:
        """Forget a call, because it has its result.

        Returns:
            Whether a tool had taken it.
        """
        with self._lock:
            reached = self._known(agent).reached
            found = call_id in reached
            reached.discard(call_id)
        return found

    def _known(self, agent: Any) -> _Known:
        return self._agents.get_or_make(agent, _Known)

    def _say(self, known: _Known, what: str, text: str) -> None:
        with self._lock:
            fresh = what not in known.said
            known.said.add(what)
        if fresh:
            _log.warning("%s", text)

"""Watch the agents' event loop, report what blocks it, and start fewer attempts meanwhile."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from agl_core.runner.limits import UNBLOCK
from agl_core.tracing import describe
from agl_core.tracing.agent_loop import Stall, agent_loop, replace_loop

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.25
"""A block may begin just after an answer: the loop is asked one look later, and found blocked at
the first look after `BLOCKED_S` more. These 4.5 s leave 0.5 s of the promised 5 for late looks."""
_PROMPT_S: Final = 0.2
"""Coroutines that take longer to their first await are started few at a time."""
_PLACES: Final = 100
"""Most blocking functions that are kept and logged."""


class LoopWatch:
    """Watches the agents' loop from the runner's."""

    def __init__(self) -> None:
        self._longest: dict[str, Stall] = {}

    @property
    def stalls(self) -> list[Stall]:
        """The longest stall of each blocking function."""
        return list(self._longest.values())

    async def run(self) -> None:
        """Look every `_LOOK_S` until cancelled."""
        known = ""
        while True:
            try:
                self.look()
            except Exception as error:  # noqa: BLE001  telemetry: the stack may have no readable source
                if (problem := describe(error)) != known:
                    _log.warning("The agents' event loop cannot be watched: %s", problem)
                known = problem
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """Report a stall, and replace the loop where the attempt that blocks it has ended."""
        loop = agent_loop()
        if loop is None:
            return
        stall = loop.stall()
        loop.ask()
        if stall is None:
            return
        self._keep(stall)
        if not loop.live(stall.attempt_id):
            # The attempt has ended, and its code may block for ever.
            replace_loop(loop)

    def _keep(self, stall: Stall) -> None:
        where = f"{stall.function} {stall.place.rpartition(':')[0]}"
        known = self._longest.get(where)
        if known is None and len(self._longest) < _PLACES:
            _log.warning(
                "Blocked: %s. Gateway, heartbeats and deadlines are not affected, but every other "
                "async agent and reward of this process waits. %s. Further stalls of this "
                "function are not logged. Stack:\n%s",
                stall,
                UNBLOCK.format(function=stall.function),
                stall.stack,
            )
        if known is not None or len(self._longest) < _PLACES:
            longest = known if known is not None and known.seconds > stall.seconds else stall
            self._longest[where] = longest


class Pace:
    """How many attempts may start at once: few, until agents are seen to await.

    An async agent that never awaits runs alone, however many have started: the deadlines of the
    others would pass while they wait. Other processes can claim what is left in the queue.
    """

    def __init__(self) -> None:
        self._beginning: set[str] = set()
        self._most = 1
        self.changed = asyncio.Event()
        """Set when more may start."""

    def room(self, free: int) -> int:
        """How many attempts to claim, of the `free` ones that concurrency allows."""
        self.changed.clear()
        return min(free, self._most - len(self._beginning))

    def begin(self, attempt_id: str) -> None:
        """Count an attempt that was claimed."""
        self._beginning.add(attempt_id)

    def begun(self, attempt_id: str, after_s: float) -> None:
        """Allow more or fewer: the agent let others run `after_s` after it was submitted."""
        if attempt_id in self._beginning:
            slow = after_s > _PROMPT_S
            self._most = max(self._most // 2, 1) if slow else self._most + 1
            self.ended(attempt_id)

    def ended(self, attempt_id: str) -> None:
        """Forget an attempt that has started or failed to start."""
        self._beginning.discard(attempt_id)
        self.changed.set()

"""See whether the agents' event loop answers, say what blocks it, and slow down meanwhile."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from agl_core.runner.limits import UNBLOCK
from agl_core.tracing.agent_loop import Stall, agent_loop, replace_loop

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.25
"""A block may begin just after an answer: the loop is asked one look later, and found blocked at
the first look after `BLOCKED_S` more. These 4.5 s leave 0.5 s of the promised 5 for late looks."""
_PROMPT_S: Final = 0.2
"""A coroutine that takes longer to its first await is one of few that begin at once."""
_PLACES: Final = 100
"""Blocking functions that are remembered at most."""


class LoopWatch:
    """Looks after the loop, from another one."""

    def __init__(self) -> None:
        self._longest: dict[str, Stall] = {}

    @property
    def stalls(self) -> list[Stall]:
        """The longest stall of each function."""
        return list(self._longest.values())

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        loop = agent_loop()
        if loop is None:
            return
        stall = loop.stall()
        loop.ask()
        if stall is None:
            return
        self._keep(stall)
        if not loop.live(stall.attempt_id):
            # Its attempt has ended: nothing says that this code ever will.
            replace_loop(loop)

    def _keep(self, stall: Stall) -> None:
        where = f"{stall.function} {stall.place.rpartition(':')[0]}"
        known = self._longest.get(where)
        if known is None and len(self._longest) < _PLACES:
            _log.warning(
                "Blocked: %s. Gateway, heartbeats and deadlines are not affected, but every other "
                "async agent and reward of this process waits. %s. More stalls of this "
                "function are not logged. It is here:\n%s",
                stall,
                UNBLOCK.format(function=stall.function),
                stall.stack,
            )
        if known is not None or len(self._longest) < _PLACES:
            longest = known if known is not None and known.seconds > stall.seconds else stall
            self._longest[where] = longest


class Pace:
    """How many agents may begin at once: few, until they are seen to let others run.

    An async agent that never awaits runs alone, however many have begun: the others would spend
    their time waiting. What is not claimed yet loses none, and other processes can take it.
    """

    def __init__(self) -> None:
        self._beginning: set[str] = set()
        self._most = 1
        self.changed = asyncio.Event()
        """Set when more may begin."""

    def room(self, free: int) -> int:
        """How many attempts to claim, of as many as have a place."""
        self.changed.clear()
        return min(free, self._most - len(self._beginning))

    def begin(self, attempt_id: str) -> None:
        """It was claimed."""
        self._beginning.add(attempt_id)

    def begun(self, attempt_id: str, after_s: float) -> None:
        """It lets others run, `after_s` from when it might have begun."""
        if attempt_id in self._beginning:
            slow = after_s > _PROMPT_S
            self._most = max(self._most // 2, 1) if slow else self._most + 1
            self.ended(attempt_id)

    def ended(self, attempt_id: str) -> None:
        self._beginning.discard(attempt_id)
        self.changed.set()

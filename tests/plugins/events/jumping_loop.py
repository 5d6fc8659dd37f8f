"""An event loop whose clock jumps to the next timer instead of waiting for it."""

import asyncio
from typing import Any


class JumpingLoop(asyncio.SelectorEventLoop):
    """Runs hours of timers at once; with no timer left it waits for other threads."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._wait: Any = self._selector.select  # type: ignore[attr-defined]
        self._selector.select = self._select  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now

    def _select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            return self._wait(None)
        found = self._wait(0)
        if not found:
            self._now += timeout
        return found

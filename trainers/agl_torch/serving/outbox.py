"""Passes results from the engine's thread to the event loops of the requests."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from agl_core.errors import EngineError
from agl_torch.serving.sequence import Generation, Piece

_Item = tuple[Generation, Piece | EngineError]


class Outbox:
    """Collects the results of one step, so that each event loop is woken only once."""

    def __init__(self) -> None:
        self._items: defaultdict[asyncio.AbstractEventLoop, list[_Item]] = defaultdict(list)

    def put(self, generation: Generation, result: Piece | EngineError) -> None:
        self._items[generation.loop].append((generation, result))

    def flush(self) -> None:
        """Deliver the results; cancel requests whose event loop is closed."""
        for loop, items in self._items.items():
            try:
                loop.call_soon_threadsafe(_deliver, items)
            except RuntimeError:
                for generation, _ in items:
                    generation.cancelled = True
        self._items.clear()


def _deliver(items: list[_Item]) -> None:
    for generation, result in items:
        generation.pieces.put_nowait(result)

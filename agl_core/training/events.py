"""Events of a run: observing plugins, observers such as the progress display, counted losses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from agl_core.interfaces import Observer, show_stage
from agl_core.types import Evaluation, Losses, StepReport


class Notify(Protocol):
    """Calls every plugin's implementation of an observing hook."""

    def __call__(self, hook: str, **arguments: Any) -> None: ...


class Events:
    """Fans out to plugins and observers, and collects losses that components count."""

    def __init__(
        self,
        notify: Notify,
        observers: Sequence[Observer],
        *,
        take_losses: Callable[[], Awaitable[Losses]],
    ) -> None:
        """Say who listens.

        Args:
            notify: Reaches the plugins.
            observers: Reached in order.
            take_losses: Returns what the components have lost since it was last called.
        """
        self.notify = notify
        self.take_losses = take_losses
        self._observers = tuple(observers)

    def stage(self, doing: str) -> None:
        show_stage(self._observers, doing)

    def step(self, report: StepReport) -> None:
        for observer in self._observers:
            observer.step(report)

    def evaluation(self, evaluation: Evaluation) -> None:
        for observer in self._observers:
            observer.evaluation(evaluation)

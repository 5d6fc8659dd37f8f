"""Events of a run, which go to plugins and observers such as the progress display."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from agl_core.interfaces import Observer, show_stage
from agl_core.types import Evaluation, Losses, StepReport


class Notify(Protocol):
    """A function that calls every plugin's implementation of an observing hook."""

    def __call__(self, hook: str, **arguments: Any) -> None: ...


class Events:
    """The events of a run: sends them to plugins and observers, and collects counted losses."""

    def __init__(
        self,
        notify: Notify,
        observers: Sequence[Observer],
        *,
        take_losses: Callable[[], Awaitable[Losses]],
    ) -> None:
        """Configure the receivers of events.

        Args:
            notify: Calls the plugins' hooks.
            observers: Observers, called in this order.
            take_losses: Returns the components' losses since its last call.
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

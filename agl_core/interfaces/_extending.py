"""Protocols of plugins and users: rewards, checks, observers, integrations, registrations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from agl_core.interfaces._learning import AttemptRecord
from agl_core.interfaces._store import Store
from agl_core.types import (
    Evaluation,
    Finding,
    Losses,
    Report,
    RolloutQuery,
    Scope,
    StepReport,
    Task,
)

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The description of a run that a tracker gets before the first step."""

    name: str
    directory: Path
    """The run's directory; a tracker saves state here to continue after a crash."""
    config: Mapping[str, Any]
    """The resolved configuration as plain data, without secrets."""
    resumed_at: int | None = None
    """Step of the checkpoint from which the run is resumed; later steps are repeated. None: the run
    is new, and files of an earlier try in the directory are obsolete."""


class Tracker(Protocol):
    """Sends a run's numbers to a service.

    All methods are called in one thread, in order, and may block; the run waits only for `start`
    and `finish`. An error in `start` ends the run before anything is loaded. An error in another
    method is counted as the loss ``tracker_<name>_failed`` and logged once; the run continues.
    """

    def start(self, run: TrackedRun) -> None:
        """Open a new run of the service, or for a resumed run the existing one.

        Raises:
            ConfigError: the run cannot be opened with this configuration.
        """
        ...

    def step(self, report: StepReport) -> None:
        """Send a finished step; a resumed run may repeat one that was sent before a crash."""
        ...

    def evaluation(self, evaluation: Evaluation) -> None:
        """Send an evaluation of the agents; it holds the number of the step before it."""
        ...

    def finish(self, outcome: Report | BaseException) -> None:
        """Send the run's report or error; this is the last call."""
        ...


class RewardFunction(Protocol):
    """Scores an attempt in the runner; may be async. A mapping has one reward per channel."""

    def __call__(self, task: Task, output: Any, attempt: AttemptRecord) -> Any: ...


@runtime_checkable
class KeepsFiles(Protocol):
    """An optional ability of a reward: storing files in the run's directory."""

    def keep_in(self, directory: Path) -> None:
        """Set the directory, once, before the first attempt is scored; it may not exist yet."""
        ...


class Check(Protocol):
    """Looks for a framework's pitfalls in the records of a trial of a few tasks."""

    def __call__(self, records: Sequence[AttemptRecord], config: Any) -> Iterable[Finding]:
        """Yield findings about the ended attempts; `config` is the run's `RunConfig`.

        Called once, while agl is attached. Yield nothing if the framework was not used.
        """
        ...


class Sent(msgspec.Struct, kw_only=True):
    """Counts of what an exporter sent from a store, and of what the receiver rejected."""

    attempts: int = 0
    spans: int = 0
    """Including the root span of each attempt."""
    rejected: int = 0
    reasons: list[str] = []
    running: int = 0
    """Attempts that have not ended; they are not sent."""


class Exporter(Protocol):
    """Sends the attempts of a store to another system."""

    async def __call__(
        self,
        store: Store,
        endpoint: str,
        *,
        query: RolloutQuery | None = None,
        headers: Mapping[str, str] | None = None,
        content: bool = False,
    ) -> Sent:
        """Send every ended attempt.

        Args:
            store: An open store; reading is enough.
            endpoint: Address of the receiver.
            query: Selects rollouts; None selects all.
            headers: HTTP headers for the receiver, such as its key.
            content: Also send prompts and answers.

        Raises:
            ConfigError: the address is not valid.
            StoreError: the receiver does not answer, or refuses.
        """
        ...


class Observer(Protocol):
    """Shows a run's progress. Its methods are called on the run's event loop, in order."""

    def started(self, config: Any) -> None:
        """Show that the components are open and no rollout is queued; `config`: the `RunConfig`."""
        ...

    def step(self, report: StepReport) -> None:
        """Show a finished step, whose weights now serve."""
        ...

    def evaluation(self, evaluation: Evaluation) -> None:
        """Show an evaluation of the agents."""
        ...

    def finished(self, report: Report) -> None:
        """Show the end of a run that had no error."""
        ...


class RunObserver(Observer, Protocol):
    """An observer of trainings with a beginning and an end to wait for, such as the trackers."""

    losses: Losses
    """What it failed to take, by cause; read at every step."""

    def following(self) -> AbstractAsyncContextManager[None]:
        """Return the context that holds while the run has its store's lease; entered once.

        An error on entering it ends the run before weights are loaded. An error that ends the run
        ends the context.
        """
        ...

    async def finish(self, report: Report) -> None:
        """Take the report of a run that had no error, before the context ends."""
        ...


@runtime_checkable
class StageObserver(Protocol):
    """An observer that also shows the run's work between steps and evaluations."""

    def stage(self, doing: str) -> None:
        """Show the work that begins now, such as ``loading weights``."""
        ...


def show_stage(observers: Iterable[Observer], doing: str) -> None:
    """Call `stage` of every observer that has it."""
    for observer in observers:
        if isinstance(observer, StageObserver):
            observer.stage(doing)


class Integration(Protocol):
    """A framework's hooks, installed while agl is attached to the process."""

    name: str

    def attach(self) -> None:
        """Install the framework's native hooks; called once until `detach`."""
        ...

    def detach(self) -> None:
        """Remove the hooks and restore the original functions."""
        ...

    def identity(self) -> Scope | None:
        """Return the scope from the framework's own context, in the task that sends a request.

        None if no agent of the framework runs in this task, or if other code opened the innermost
        scope.
        """
        ...


@runtime_checkable
class Register(Protocol):
    """The callback that ``agl_register_*`` hooks get."""

    def __call__(
        self,
        name: str,
        target: str,
        *,
        extra: str | None = None,
        config: type[BaseModel] | str | None = None,
        summary: str = "",
        required: bool = False,
    ) -> None:
        """Register a factory under `name`; it is imported on first use.

        Args:
            name: The name in the configuration.
            target: The factory, as ``"module:attribute"``.
            extra: The extra of agl-core that installs the factory's framework.
            config: pydantic model (or ``"module:attribute"`` of one) of the factory's options.
            summary: One line for ``agl plugins``.
            required: Of an integration: without it no run starts, and it is attached before those
                that are not required. At least one required integration has to be registered.
        """
        ...

"""What plugins and users supply: rewards, checks, observers, integrations, registrations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from agl_core.interfaces.learning import AttemptRecord
from agl_core.interfaces.store import Store
from agl_core.types import Evaluation, Finding, Report, RolloutQuery, Scope, StepReport, Task

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run, as a tracker gets it before the first step."""

    name: str
    directory: Path
    """The run's directory; a tracker keeps here what it needs to continue after a crash."""
    config: Mapping[str, Any]
    """The resolved configuration as plain data, secrets blanked out."""
    resumed_at: int | None = None
    """Step of the checkpoint from which the run is resumed; later steps are repeated. None: the run
    starts, and files of an earlier try in the directory are obsolete."""


class Tracker(Protocol):
    """Sends a run's numbers to a service.

    All methods are called in one thread, in order, and may block; the run waits for `start` and
    `finish` only. What `start` raises ends the run before anything is loaded. What the others raise
    is counted as the loss ``tracker_<name>_failed`` and logged once, and the run continues.
    """

    def start(self, run: TrackedRun) -> None:
        """Open the tracker's run, or the one that a resumed run belongs to.

        Raises:
            ConfigError: it cannot be opened as it is configured.
        """
        ...

    def step(self, report: StepReport) -> None:
        """A step is done; a resumed run may repeat one that was reported before a crash."""
        ...

    def evaluation(self, evaluation: Evaluation) -> None:
        """The agents have been scored, after the step of that number."""
        ...

    def finish(self, outcome: Report | BaseException) -> None:
        """The run has ended, with a report or with an error; no call follows."""
        ...


class RewardFunction(Protocol):
    """Scores an attempt in the runner; may be async. A mapping gives one reward per channel."""

    def __call__(self, task: Task, output: Any, attempt: AttemptRecord) -> Any: ...


@runtime_checkable
class KeepsFiles(Protocol):
    """Optional ability of a reward: to keep files in the run's directory."""

    def keep_in(self, directory: Path) -> None:
        """Called once, before the first attempt is scored; the directory may not exist yet."""
        ...


class Check(Protocol):
    """Looks for a framework's pitfalls in what a trial of a few tasks recorded."""

    def __call__(self, records: Sequence[AttemptRecord], config: Any) -> Iterable[Finding]:
        """Yield findings about the ended attempts, under the run's `RunConfig`.

        Called once, while agl is attached. Yields nothing if the framework was not used.
        """
        ...


class Sent(msgspec.Struct, kw_only=True):
    """What an exporter sent of a store, and what the receiver did not keep."""

    attempts: int = 0
    spans: int = 0
    """Roots of attempts included."""
    rejected: int = 0
    reasons: list[str] = []
    running: int = 0
    """Attempts that have not ended, which are not sent."""


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
            store: Open, at least for reading.
            endpoint: Address of the receiver.
            query: Which rollouts; all when None.
            headers: For the receiver, such as its key.
            content: Also send what was asked and answered.

        Raises:
            ConfigError: the address is not valid.
            StoreError: the receiver does not answer, or refuses.
        """
        ...


class Observer(Protocol):
    """Watches a run from outside: the progress display. Called on the run's loop, in order."""

    def started(self, config: Any) -> None:
        """The components are open, no rollout is queued yet; `config` is the run's `RunConfig`."""
        ...

    def step(self, report: StepReport) -> None:
        """A step is done and its weights serve."""
        ...

    def evaluation(self, evaluation: Evaluation) -> None:
        """The agents have been scored."""
        ...

    def finished(self, report: Report) -> None:
        """The run has ended without an error."""
        ...


@runtime_checkable
class StageObserver(Protocol):
    """An observer that also shows what a run does between steps and evaluations."""

    def stage(self, doing: str) -> None:
        """What takes time from now on, such as ``loading weights``."""
        ...


def show_stage(observers: Iterable[Observer], doing: str) -> None:
    """Call those observers that show stages."""
    for observer in observers:
        if isinstance(observer, StageObserver):
            observer.stage(doing)


class Integration(Protocol):
    """A framework's hooks, installed for as long as agl is attached to the process."""

    name: str

    def attach(self) -> None:
        """Install the framework's native hooks; called once until `detach`."""
        ...

    def detach(self) -> None:
        """Remove them and restore what was there."""
        ...

    def identity(self) -> Scope | None:
        """Scope read from the framework's own context, in the task that sends.

        None if no agent of the framework runs in this task, or the innermost scope belongs to
        other code.
        """
        ...


@runtime_checkable
class Register(Protocol):
    """The callback that ``agl_register_*`` hooks are handed."""

    def __call__(
        self,
        name: str,
        target: str,
        *,
        extra: str | None = None,
        config: type[BaseModel] | str | None = None,
        summary: str = "",
    ) -> None:
        """Offer `target`, ``"module:attribute"``, under `name`; it is imported on first use.

        Args:
            name: Chosen by this name in the configuration.
            target: Where the factory lives.
            extra: The extra of agl-core that brings its framework.
            config: pydantic model (or ``"module:attribute"`` of one) of its options.
            summary: One line for ``agl plugins``.
        """
        ...

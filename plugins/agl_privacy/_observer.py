"""The section ``[privacy]`` of a run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agl_core.config import RunConfig, validate
from agl_core.errors import ConfigError
from agl_core.interfaces import TrackedRun
from agl_core.plugins import PluginManager
from agl_core.types import Evaluation, Losses, Report, StepReport
from agl_privacy._logs import masked_logs
from agl_privacy._masker import Masker
from agl_privacy._options import PrivacyOptions


class PrivacyObserver:
    """Masks the logs of a run; implements `agl_core.interfaces.RunObserver`."""

    def __init__(self, masker: Masker, *, logs: bool) -> None:
        """Keep what masks, which the other parts of the run share.

        Args:
            masker: What masks the logs.
            logs: False leaves them as they are.
        """
        self.losses = Losses()
        self._masker = masker
        self._logs = logs

    @asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """Mask the logs of agl-core inside."""
        with masked_logs(self._masker if self._logs else None):
            yield

    def started(self, config: Any) -> None:
        """Do nothing."""

    def step(self, report: StepReport) -> None:
        """Do nothing: the filter counts."""

    def evaluation(self, evaluation: Evaluation) -> None:
        """Do nothing."""

    async def finish(self, report: Report) -> None:
        """Do nothing."""

    def finished(self, report: Report) -> None:
        """Do nothing."""


def make_observer(
    config: RunConfig, plugins: PluginManager, describe: Callable[[], TrackedRun]
) -> PrivacyObserver:
    """Make the observer of ``[privacy]``.

    Raises:
        ConfigError, MissingExtraError: an option is wrong.
    """
    del plugins, describe
    options = validate(PrivacyOptions, config.sections["privacy"], where="privacy")
    if options.store and config.rollout.resume == "replay":
        raise ConfigError(
            "Configuration: privacy.store = true masks the answers that rollout.resume = 'replay' "
            "would give the agent again: set one of them to its default"
        )
    return PrivacyObserver(Masker.shared(options), logs=options.logs)


def make_runner_observer(config: RunConfig, plugins: PluginManager) -> PrivacyObserver:
    """Make what masks the logs of a runner's process, as `agl_remote.RunnerObserver`.

    Raises:
        ConfigError, MissingExtraError: an option is wrong.
    """
    del plugins
    options = validate(PrivacyOptions, config.sections["privacy"], where="privacy")
    return PrivacyObserver(Masker.shared(options), logs=options.logs)

"""The observer ``storage``: mirrors a run, and brings the checkpoint that it continues from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from agl_core.clocks import new_id
from agl_core.config import RunConfig, validate, without_secrets
from agl_core.errors import ConfigError, TrainingError
from agl_core.interfaces import TrackedRun
from agl_core.plugins import PluginManager, Source, hookimpl
from agl_core.text import json_bytes
from agl_core.types import Evaluation, Losses, Report, StepReport
from agl_storage._manifest import StorageError
from agl_storage._mirror import TRIES, Mirror, MirroredRun
from agl_storage._options import StorageOptions
from agl_storage._remote import Remote, hidden

_log = logging.getLogger(__name__)

_INTERRUPTED_S: Final = 1.0
"""Longest wait in a run that is interrupted, whose process is ended soon, and after a wait that
was too short."""


class StorageObserver:
    """Mirrors a run; implements `agl_core.interfaces.RunObserver`.

    Only `following` at its start, `finish` and the hook of the run's end wait for the storage.
    """

    brings_checkpoints = True

    def __init__(self, config: RunConfig, options: StorageOptions, mirror: Mirror) -> None:
        self.losses = Losses()
        self._config, self._options, self._mirror = config, options, mirror
        self._incomplete = False
        """Whether the wait at the end was over before the uploads."""

    @asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """Check the storage, fetch the checkpoint to continue from, and mirror the run.

        Raises:
            ConfigError: the storage does not answer, refuses, or has another run of that name.
        """
        mirror, options = self._mirror, self._options
        mirror.start()
        try:
            connected = asyncio.shield(asyncio.wrap_future(mirror.connected))
            await asyncio.wait_for(connected, options.timeout_s)
            await asyncio.shield(asyncio.wrap_future(mirror.ready))
        except TimeoutError as error:
            mirror.close()
            raise ConfigError(
                f"storage.url = {hidden(options.address())!r}: it does not answer within "
                f"{options.timeout_s:g} s: start it, or correct the address"
            ) from error
        except StorageError as error:
            raise ConfigError(
                f"The run cannot start with its section [storage]: {error}"
            ) from error
        except asyncio.CancelledError:
            mirror.close()
            raise
        try:
            yield
        except BaseException as error:
            is_error = isinstance(error, Exception) and not isinstance(
                error, asyncio.CancelledError
            )
            await self._flush(options.flush_s if is_error else _INTERRUPTED_S)
            mirror.close()
            raise

    def started(self, config: Any) -> None:
        """Do nothing: there is no file yet."""

    def step(self, report: StepReport) -> None:  # noqa: ARG002
        self._look()
        mirror = self._mirror
        if self._options.required and mirror.failed_in_row >= TRIES:
            raise TrainingError(
                f"storage.required = true, and {TRIES} uploads in a row have failed. "
                f"{mirror.last_error}"
            )

    def evaluation(self, evaluation: Evaluation) -> None:  # noqa: ARG002
        self._look()

    def stage(self, doing: str) -> None:  # noqa: ARG002
        self._look()

    async def finish(self, report: Report) -> None:  # noqa: ARG002
        """Wait for the uploads, at most `flush_s`.

        Raises:
            TrainingError: the storage is required and does not have everything.
        """
        left = await self._flush(self._options.flush_s)
        self._incomplete = bool(left)
        if left and self._options.required:
            self._mirror.close()
            raise TrainingError(f"storage.required = true, but {self._lacks(left)}")

    def finished(self, report: Report) -> None:
        """Do nothing: the hook of the run's end comes later."""

    @hookimpl
    def agl_run_finished(self) -> None:
        """Store the report, which has just been written, and end."""
        within_s = min(self._options.flush_s, self._options.timeout_s)
        left = self._mirror.flush(_INTERRUPTED_S if self._incomplete else within_s)
        self._mirror.close()
        if left:
            _log.warning("%s", self._lacks(left))

    async def _flush(self, within_s: float) -> list[str]:
        left = await asyncio.to_thread(self._mirror.flush, within_s)
        if left:
            self._mirror.count("storage_not_mirrored", len(left))
            _log.warning("%s", self._lacks(left))
        self.losses.counts = self._mirror.losses()
        return left

    def _lacks(self, left: list[str]) -> str:
        return (
            f"{', '.join(left)} of run {self._config.name!r} did not get into the storage "
            f"({self._mirror.last_error or 'it is slow'}): resume the run, or use agl storage push"
        )

    def _look(self) -> None:
        self._mirror.wake()
        self.losses.counts = self._mirror.losses()


def make_observer(
    config: RunConfig, plugins: PluginManager, describe: Callable[[], TrackedRun]
) -> StorageObserver:
    """Make the observer of ``[storage]``, without connecting, and have the hooks call it.

    Raises:
        ConfigError: the address, its scheme or an option is wrong.
        MissingExtraError: the library of the scheme is not installed.
    """
    del describe
    options = validate(StorageOptions, config.sections["storage"], where="storage")
    url = f"{options.address()}/{config.name}"
    Remote(url, options.options)  # fails here and not in a thread
    run = MirroredRun(
        config=config,
        shown=json_bytes(without_secrets(config), indent=2),
        directory=Path(config.directory) / config.name,
        remote=lambda: Remote(url, options.options),
        prune=options.prune,
    )
    observer = StorageObserver(config, options, Mirror(run))
    plugins.register(observer, Source(name=new_id("storage")))
    return observer

"""``agl watch``: show a run of another process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import Final

import click
from agl_stores import has_scheme, locate_store, open_for_reading

from agl_core.cli.group import CliState, debug_option, plugin_option
from agl_core.clocks import wall
from agl_core.config import RESOLVED, load_config
from agl_core.errors import AglError, ConfigError, StoreError
from agl_core.interfaces import Store
from agl_core.types import Rollout, RolloutQuery, RolloutStatus
from agl_progress._display import Display, LiveProgress, PlainProgress, console
from agl_progress._follow import LogFollower

_UNDER_WAY: Final = RolloutQuery(statuses=(RolloutStatus.QUEUED, RolloutStatus.RUNNING))


@click.command()
@click.argument("target", metavar="RUN")
@click.option("--once", is_flag=True, help="Show the state as it is now, and stop.")
@click.option(
    "--every",
    "interval_s",
    type=click.FloatRange(min=0.0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks at the run.",
)
@plugin_option
@debug_option
@click.pass_obj
def command(state: CliState, *, target: str, once: bool, interval_s: float) -> int:
    """Watch a run of another process.

    RUN is a run's directory, a configuration, a database file or an http:// address. On a terminal
    the view updates in place; otherwise every step is one line of text. It ends with the run: the exit
    status is 0 if the run finished, and 1 if it failed or its process ended. Ctrl+C ends the view, not
    the run. Only rollouts under way are shown of an address, as the log is in the run's directory.
    """
    directory = None if has_scheme(target) else directory_of(target)
    output = console(sys.stdout)
    live = output.is_terminal and not output.is_dumb_terminal
    display = LiveProgress(output) if live else PlainProgress(output)
    watch = WatchedRun(state, target, directory, display)
    with display.shown() if isinstance(display, LiveProgress) else nullcontext():
        asyncio.run(watch.run(interval_s=None if once else interval_s))
    for line in watch.conclusion():
        click.echo(line)
    return 1 if watch.failed else 0


def directory_of(target: str) -> Path:
    """Return the directory of a run that may not have a store yet.

    Raises:
        ConfigError: there is no such file or directory.
    """
    path = Path(target).expanduser()
    if path.is_dir():
        return path.resolve()
    if not path.is_file():
        raise ConfigError(
            f"{target!r} is not a run's directory, configuration, store file or address (SCHEME://…): "
            f"no such file or directory exists"
        )
    if path.suffix.lower() in (".toml", ".yaml", ".yml", ".json") and path.name != RESOLVED:
        run = load_config(path)
        return (Path(run.directory) / run.name).resolve()
    return path.parent.resolve()


class WatchedRun:
    """One run that is looked at again and again."""

    def __init__(
        self, state: CliState, target: str, directory: Path | None, display: Display
    ) -> None:
        self._plugins = state.plugins()
        self._target = target
        self._display = display
        self._follower = None if directory is None else LogFollower(directory, display)
        self._store: Store | None = None
        self._stack = AsyncExitStack()

    async def run(self, *, interval_s: float | None) -> None:
        """Look until the run ends; once if `interval_s` is None."""
        async with self._stack:
            await self._look()
            while interval_s is not None and not self._ended:
                await asyncio.sleep(interval_s)
                await self._look()

    @property
    def failed(self) -> bool:
        return self._follower is not None and self._follower.state in ("failed", "stopped")

    def conclusion(self) -> list[str]:
        """Return the last lines of the view."""
        follower = self._follower
        if follower is None:
            return [self._display.under_way]
        lines = [f"run {follower.state}"]
        match follower.state:
            case "unknown":
                lines = ["run has written no log: it has not begun, or shows no progress"]
            case "failed":
                lines = [f"run failed: {follower.error}"]
            case "stopped" | "running" if follower.deleted:
                lines = [f"run's log was deleted while {follower.process} ran"]
            case "stopped":
                lines = [f"run stopped: {follower.process} has ended without a last word"]
            case "running":
                lines = [f"run continues in {follower.process}", self._display.under_way]
            case _:
                pass
        if follower.damaged:
            lines.append(f"lines of the log that cannot be read: {follower.damaged}")
        return lines

    @property
    def _ended(self) -> bool:
        return self._follower is not None and self._follower.state not in ("running", "unknown")

    async def _look(self) -> None:
        try:
            if self._follower is not None:
                self._follower.read()
        except OSError as error:
            raise StoreError(f"The log of run {self._target!r} cannot be read: {error}") from error
        try:
            if self._store is None:
                address = locate_store(self._target, self._plugins)
                address.check_named()
                self._store = await self._stack.enter_async_context(
                    open_for_reading(address, self._plugins)
                )
            self._display.under_way = under_way(await self._store.rollouts(_UNDER_WAY))
        except AglError as error:
            if self._follower is None:
                raise
            # The log says more than the store, which may be gone, locked or not yet there.
            self._display.under_way = f"not known: {error}"


def under_way(rollouts: Sequence[Rollout]) -> str:
    """Return how many rollouts run and wait, and how long the oldest attempt has run."""
    running = [each for each in rollouts if each.status == RolloutStatus.RUNNING]
    begun = [
        attempt.started_at
        for each in running
        for attempt in each.attempts
        if attempt.ended_at is None and attempt.started_at
    ]
    oldest = f", the oldest for {wall() - min(begun):.0f} s" if begun else ""
    more = "+" if len(rollouts) == _UNDER_WAY.limit else ""
    return f"{len(running)}{more} running{oldest}, {len(rollouts) - len(running)}{more} queued"

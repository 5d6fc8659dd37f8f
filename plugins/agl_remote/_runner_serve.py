"""``agl runner``."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from agl_endpoints import ca_option

from agl_core.cli.group import (
    CliState,
    debug_option,
    failure_status,
    importable,
    plugin_option,
    set_option,
    show_failure,
)
from agl_core.cli.output import tolerate_any_console, warnings_shown
from agl_core.errors import AglError
from agl_core.types.run import counts

if TYPE_CHECKING:
    from agl_core.config import RunConfig
    from agl_core.plugins import PluginManager
    from agl_remote._runner_fleet import WorkerChannel

_MAX_ABANDONED: Final = 4
"""Most threads and tasks that could not be stopped with which a worker continues."""


@click.command()
@click.argument("config_file", metavar="CONFIG")
@click.option("--store", metavar="URL", help="The store's address: agl store serve prints it.")
@click.option("--gateway", metavar="URL", help="The gateway's address: agl gateway prints it.")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Worker processes; more than one are watched, and replaced when they end or hang.",
)
@set_option
@ca_option
@plugin_option
@debug_option
@click.pass_obj
def command(
    state: CliState,
    *,
    config_file: str,
    store: str | None,
    gateway: str | None,
    processes: int,
    overrides: tuple[str, ...],
) -> None:
    """Run the attempts of a training of another process, until interrupted.

    CONFIG is the configuration that the trainer has. AGL_API_KEY holds the key that store, gateway,
    trainer and runners share. Each process runs up to rollout.concurrency attempts at a time.
    """
    elsewhere = [f"gateway.url={gateway}"] if gateway is not None else []
    config = state.config(config_file, [*overrides, *elsewhere])
    each = config.rollout.concurrency
    click.echo(f"runner of {config.name}: up to {each} attempts in each of {processes} process(es)")
    with importable(Path()):
        if processes == 1:
            _serve_here(state, config, store)
        else:
            _serve_fleet(config, store, processes, debug=state.debug)


def _with_store(config: RunConfig, address: str | None, plugins: PluginManager) -> RunConfig:
    """Return the configuration with the store at the address, if there is one.

    Raises:
        ConfigError: no store of the plugins takes the address, or several do.
    """
    from agl_stores import store_at  # noqa: PLC0415

    if address is None:
        return config
    return config.model_copy(update={"store": store_at(address, plugins)})


def _serve_here(state: CliState, config: RunConfig, store: str | None) -> None:
    from agl_core.app import run_blocking  # noqa: PLC0415
    from agl_remote._runner import serve_runner  # noqa: PLC0415

    latest: list[tuple[int, Mapping[str, int]]] = []

    def keep(ended: int, lost: Mapping[str, int]) -> None:
        latest[:] = [(ended, lost)]

    plugins = state.plugins(config.plugins)
    config = _with_store(config, store, plugins)
    try:
        run_blocking(serve_runner(config, plugins, report=keep))
    finally:
        for ended, lost in latest:
            _say(f"{ended} attempts ended", lost)


def _serve_fleet(config: RunConfig, store: str | None, processes: int, *, debug: bool) -> None:
    """The supervisor loads none of the user's code: what breaks there breaks a worker only."""
    from agl_core.app import run_blocking  # noqa: PLC0415
    from agl_core.serving import given_key, withheld_key  # noqa: PLC0415
    from agl_remote._runner_fleet import Fleet, FleetOptions  # noqa: PLC0415

    arguments = (config.model_dump_json(), debug, given_key(), store)
    fleet = Fleet(work, arguments, FleetOptions(processes=processes))
    try:
        with withheld_key():  # of the workers' environment
            run_blocking(fleet.run())
    finally:
        record = fleet.record
        workers = {
            "died": record.died,
            "recycled": record.recycled,
            "killed": record.killed,
        }
        shown = counts({name: count for name, count in workers.items() if count})
        _say(
            f"{record.ended} attempts ended, workers replaced: {shown or 'none'}",
            record.losses.counts,
        )


def _say(what: str, lost: Mapping[str, int]) -> None:
    click.echo(f"runner: {what}, lost {counts(lost) or 'nothing'}")


def work(
    channel: WorkerChannel, config_json: str, debug: bool, key: str, store: str | None = None
) -> None:
    """What a worker process does, from its first moment to its exit status.

    The key comes in no environment: agents run here.
    """
    from agl_core.app import load_plugins, run_blocking  # noqa: PLC0415
    from agl_core.config import resolve  # noqa: PLC0415
    from agl_core.serving import withheld_key  # noqa: PLC0415
    from agl_remote._runner import serve_runner  # noqa: PLC0415
    from agl_remote._runner_fleet import RECYCLE  # noqa: PLC0415

    stop = _Stop()
    channel.watch(stop.ask)
    tolerate_any_console()

    async def serve() -> int:
        config = resolve(json.loads(config_json))
        plugins = load_plugins(config.plugins)
        status = 1
        try:
            config = _with_store(config, store, plugins)
            await serve_runner(config, plugins, report=channel.report, max_abandoned=_MAX_ABANDONED)
            status = RECYCLE
        except asyncio.CancelledError:
            status = 0
        except AglError as error:
            show_failure(error, debug=debug)
            status = failure_status(error)
        finally:
            channel.leave(status)
        return status

    with warnings_shown(), withheld_key(key):
        status = run_blocking(stop.heeded(serve()))
    sys.exit(status)


class _Stop:
    """Cancels a coroutine when asked to from another thread, or before it began."""

    def __init__(self) -> None:
        self._asked = False
        self._cancel: Callable[[], object] | None = None

    def ask(self) -> None:
        self._asked = True
        if self._cancel is not None:
            with suppress(RuntimeError):  # the loop has been closed: it has ended already
                self._cancel()

    async def heeded(self, coroutine: Coroutine[Any, Any, int]) -> int:
        task = asyncio.create_task(coroutine)
        loop = asyncio.get_running_loop()
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        if self._asked:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if not self._asked:
                raise
            return 0  # before it began to serve

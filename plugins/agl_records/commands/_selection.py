"""Arguments and options for the store and for rollout filters, shared by the subcommands."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import click
from agl_stores import StoreAddress, locate_store, make_store_at, open_for_reading

from agl_core.cli.group import CliState
from agl_core.config import RunConfig
from agl_core.errors import ConfigError
from agl_core.interfaces import StoreLifecycle
from agl_core.types import Mode, RolloutQuery, RolloutStatus

store_argument: Any = click.argument("target", metavar="STORE")
CLEANING: Final = "agl_records.cleaning"
"""Key in a command's ``meta`` under which an option of a plugin puts a function of the run's
configuration, or None; it returns what cleans rows, as `agl_records.export_rollouts` takes it."""
VIEW: Final = "agl_records.view"
"""Key under which an option of a plugin puts a `StoreView`."""
StoreView = Callable[[StoreLifecycle, RunConfig | None], StoreLifecycle]
"""Returns a store through which a command reads an open store."""
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Filters of rollouts; None and () do not filter."""

    statuses: tuple[RolloutStatus, ...] = ()
    mode: Mode | None = None
    run_id: str | None = None
    group_id: str | None = None

    @property
    def query(self) -> RolloutQuery:
        return RolloutQuery(
            statuses=self.statuses, mode=self.mode, run_id=self.run_id, group_id=self.group_id
        )


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--status``, ``--mode``, ``--run`` and ``--group``; see `filters_of`."""
    options = (
        click.option(
            "--status",
            "statuses",
            multiple=True,
            type=click.Choice([status.value for status in RolloutStatus]),
            metavar="STATUS",
            help="Only queued, running, succeeded, failed or cancelled ones; may be repeated.",
        ),
        click.option(
            "--mode",
            type=click.Choice(["train", "val", "test"]),
            metavar="MODE",
            help="Only those of train, val or test.",
        ),
        click.option("--run", "run_id", metavar="NAME", help="Only those of this run."),
        click.option("--group", "group_id", metavar="ID", help="Only those of this group."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def filters_of(options: dict[str, Any]) -> Filters:
    """Remove the options of `filter_options` from `options` and return them as filters."""
    statuses = cast("tuple[str, ...]", options.pop("statuses"))
    return Filters(
        statuses=tuple(RolloutStatus(status) for status in statuses),
        mode=options.pop("mode"),
        run_id=options.pop("run_id"),
        group_id=options.pop("group_id"),
    )


def located(state: CliState, target: str) -> StoreAddress:
    """Return the store that a command's argument names.

    Raises:
        ConfigError: there is no store, or only the run's own record names its server.
    """
    address = locate_store(target, state.plugins())
    address.check_named(_typed_with(address.url or "", target))
    return address


def _typed_with(url: str, target: str) -> str:
    """Return the current command line with an address in place of the target."""
    context = click.get_current_context()
    arguments = [each for each in context.command.params if isinstance(each, click.Argument)]
    given = [context.params.get(each.name or "") for each in arguments]
    words = [url if word == target else str(word) for word in given]
    while context.parent is not None:
        words.insert(0, context.info_name or "")
        context = context.parent
    return shlex.join(["agl", *words])


@asynccontextmanager
async def reading(
    state: CliState, address: StoreAddress, *, for_people: bool = False
) -> AsyncGenerator[StoreLifecycle, None]:
    """Open the store for reading; only local plugin files of the command line are loaded."""
    view: StoreView | None = click.get_current_context().meta.get(VIEW)
    async with open_for_reading(address, state.plugins(), for_people=for_people) as store:
        yield view(store, address.run) if view is not None else store


def store_of(state: CliState, address: StoreAddress) -> StoreLifecycle:
    """Return the store, not opened."""
    return make_store_at(address, state.plugins())


def seconds(text: str) -> float:
    """Return the seconds of an age such as ``90s``, ``15m``, ``12h``, ``7d`` or ``2w``.

    Raises:
        ConfigError: the text is not an age.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if match is None:
        raise ConfigError(
            f"Cannot read the age {text!r}: write a number and s, m, h, d or w, such as 7d"
        )
    return float(match[1]) * _SECONDS[match[2]]

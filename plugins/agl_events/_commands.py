"""``agl events``: its subcommands are registered as ``events.<name>``."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import click

from agl_core.cli.group import CliState, Subcommands, debug_option, plugin_option
from agl_core.config import RESOLVED, load_config, validate
from agl_core.errors import ConfigError
from agl_core.text import json_bytes
from agl_events._bus import Bus, make_bus
from agl_events._event import BusEvent
from agl_events._options import BusOptions, EventsOptions
from agl_events._outbox import OUTBOX, EventOutbox, OutboxInUseError, outboxes
from agl_events._sender import WINDOW
from agl_events._subscribe import subscribe

T = TypeVar("T")

_BUSY_S = 1.0
"""Longest wait for an outbox that a process uses."""
_PREFIX: str = BusOptions.model_fields["prefix"].default

url_option: Any = click.option(
    "--url",
    required=True,
    envvar="AGL_EVENTS_URL",
    help="Address of the event bus, or the environment variable AGL_EVENTS_URL.",
)
prefix_option: Any = click.option(
    "--prefix", default=_PREFIX, show_default=True, help="The runs' events.prefix."
)
channels_argument: Any = click.argument("channels", nargs=-1)
lines_option: Any = click.option(
    "--jsonl", is_flag=True, help="Write each event as a line of JSON."
)


@click.command(name="events", cls=Subcommands)
def events() -> None:
    """Show, delete and send the events of an event bus.

    CHANNELS are names or globs, such as "rollout:*"; all channels without any.
    """


@click.command()
@channels_argument
@url_option
@prefix_option
@click.option("--group", help="Read as a member of a consumer group.")
@click.option("--history", is_flag=True, help="Begin with the events that the bus keeps.")
@click.option("--limit", type=click.IntRange(min=1), help="End after so many events.")
@lines_option
@plugin_option
@debug_option
@click.pass_obj
def tail(
    state: CliState, *, channels: tuple[str, ...], url: str, limit: int | None, **options: Any
) -> None:
    """Show events as they come, until interrupted."""
    found = subscribe(
        url,
        channels or ("*",),
        group=options["group"],
        history=options["history"],
        prefix=options["prefix"],
        plugins=state.plugins(),
    )
    with closing(iter(found)) as coming:
        for number, event in enumerate(coming, start=1):
            _show(event, lines=options["jsonl"])
            if number == limit:
                break


@click.command()
@channels_argument
@url_option
@prefix_option
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Show the newest events, so many.",
)
@lines_option
@plugin_option
@debug_option
@click.pass_obj
def history(
    state: CliState,
    *,
    channels: tuple[str, ...],
    url: str,
    prefix: str,
    limit: int,
    jsonl: bool,
) -> None:
    """Show the events that the bus keeps, oldest first."""
    wanted = channels or ("*",)
    kept = _with_bus(state, url, prefix, lambda bus: bus.history(wanted, limit))
    for event in kept:
        _show(event, lines=jsonl)
    if not kept and not jsonl:
        click.echo("no events")


@click.command()
@channels_argument
@url_option
@prefix_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@plugin_option
@debug_option
@click.pass_obj
def clear(state: CliState, *, channels: tuple[str, ...], url: str, prefix: str, yes: bool) -> None:
    """Delete the events that the bus keeps."""
    wanted = channels or ("*",)
    if not yes:
        click.confirm(f"Delete the kept events of {', '.join(wanted)}?", abort=True)
    deleted = _with_bus(state, url, prefix, lambda bus: bus.clear(wanted))
    for channel, count in sorted(deleted.items()):
        click.echo(f"{_plain(channel)} {count}")
    click.echo(f"{sum(deleted.values())} events deleted")


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--url", help="Address of the event bus; that of the run when left out.")
@click.option("--prefix", help="The run's events.prefix, where its configuration is not in RUN.")
@plugin_option
@debug_option
@click.pass_obj
def send(state: CliState, *, run: Path, url: str | None, prefix: str | None) -> None:
    """Send the events that wait in the outboxes of RUN, a run's directory.

    Outboxes that a trainer or runner still uses are left out: it sends their events.
    """
    files = outboxes(run)
    if not files:
        raise ConfigError(f"{run} has no outbox {OUTBOX}: name the directory of a run with events")
    resolved = run / RESOLVED
    sections = load_config(resolved).sections if resolved.is_file() else {}
    given = {"url": url, "prefix": prefix}
    section = {**sections.get("events", {}), **{key: each for key, each in given.items() if each}}
    options = validate(EventsOptions, section, where="events")
    bus = make_bus(options.address(), state.plugins(), options.of_bus())
    sent, outcomes, used = asyncio.run(_send(files, bus))
    lost = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    click.echo(f"{sent} events sent" + (f": {lost}" if lost else ""))
    for file in used:
        click.echo(f"{file} is in use by a process, which sends its events")


async def _send(files: Sequence[Path], bus: Bus) -> tuple[int, Counter[str], list[Path]]:
    sent, outcomes, used = 0, Counter[str](), list[Path]()
    async with _opened(bus):
        for file in files:
            try:
                box = EventOutbox.open(file, most=1, most_bytes=1, busy_s=_BUSY_S)
            except OutboxInUseError:
                used.append(file)
                continue
            with closing(box):
                while events := box.oldest(WINDOW):
                    outcomes.update(await bus.publish([event.message for event in events]))
                    box.remove(events)
                    sent += len(events)
    return sent, outcomes, used


def _with_bus(state: CliState, url: str, prefix: str, ask: Callable[[Bus], Awaitable[T]]) -> T:
    bus = make_bus(url, state.plugins(), {"prefix": prefix})

    async def asked() -> T:
        async with _opened(bus):
            return await ask(bus)

    return asyncio.run(asked())


@asynccontextmanager
async def _opened(bus: Bus) -> AsyncGenerator[None]:
    try:
        await bus.open()
        yield
    finally:
        await bus.close()


def _show(event: BusEvent, *, lines: bool) -> None:
    if lines:
        click.echo(json_bytes(event))
        return
    data = json_bytes(event.data).decode()
    click.echo(f"{_plain(event.time)} {_plain(event.channel):<20} {_plain(data)}")


def _plain(text: str) -> str:
    """Return a text without control characters, which a terminal would obey."""
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)

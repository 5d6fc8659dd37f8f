"""``agl events``: its subcommands are registered as ``events.<name>``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
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
from agl_events._outbox import OUTBOX, EventOutbox
from agl_events._sender import WINDOW
from agl_events._subscribe import subscribe

T = TypeVar("T")

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
@plugin_option
@debug_option
@click.pass_obj
def send(state: CliState, *, run: Path, url: str | None) -> None:
    """Send the events that wait in the outbox of RUN, a run's directory."""
    resolved, outbox = run / RESOLVED, run / OUTBOX
    if not outbox.is_file():
        raise ConfigError(f"{run} has no outbox {OUTBOX}: name the directory of a run with events")
    sections = load_config(resolved).sections if resolved.is_file() else {}
    section = sections.get("events", {})
    options = validate(EventsOptions, {**section, **({"url": url} if url else {})}, where="events")
    bus = make_bus(options.address(), state.plugins(), options.of_bus())
    sent, outcomes = asyncio.run(_send(outbox, bus))
    lost = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    click.echo(f"{sent} events sent" + (f": {lost}" if lost else ""))


async def _send(file: Path, bus: Bus) -> tuple[int, dict[str, int]]:
    box = EventOutbox.open(file, most=1, most_bytes=1)
    sent, outcomes = 0, dict[str, int]()
    try:
        async with _opened(bus):
            while events := box.oldest(WINDOW):
                for outcome in await bus.publish([event.message for event in events]):
                    outcomes[outcome] = outcomes.get(outcome, 0) + 1
                box.remove(events)
                sent += len(events)
    finally:
        box.close()
    return sent, outcomes


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

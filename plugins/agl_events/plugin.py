"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_observers(register: Register) -> None:
    register(
        "events",
        "agl_events._observer:make_observer",
        config="agl_events._options:EventsOptions",
        summary="publishes what happens in a run to an event bus, through an outbox on disk",
    )
    register(
        "events.runner",
        "agl_events._observer:make_runner_observer",
        summary="publishes the attempts of a runner in a process of its own",
    )


@hookimpl
def agl_register_commands(register: Register) -> None:
    for name, summary in (
        ("events", "show, delete and send the events of an event bus"),
        ("events.clear", "delete the events that the bus keeps"),
        ("events.history", "show the events that the bus keeps"),
        ("events.send", "send the events that wait in a run's outbox"),
        ("events.tail", "show events as they come"),
    ):
        register(name, f"agl_events._commands:{name.rpartition('.')[2]}", summary=summary)

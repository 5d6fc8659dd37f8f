"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl
from agl_privacy._logs import masking


@hookimpl
def agl_register_observers(register: Register) -> None:
    masking()  # logs are masked from here on, before a run has a configuration
    register(
        "privacy",
        "agl_privacy._observer:make_observer",
        config="agl_privacy._options:PrivacyOptions",
        summary="masks personal data in logs, and keeps it out of training",
    )
    register(
        "privacy.runner",
        "agl_privacy._observer:make_runner_observer",
        summary="masks personal data in the logs of a runner in a process of its own",
    )


@hookimpl
def agl_register_filters(register: Register) -> None:
    register(
        "privacy",
        "agl_privacy._filter:make_filter",
        summary="leaves out calls with personal data, and masks what other models read",
    )


@hookimpl
def agl_register_layers(register: Register) -> None:
    register(
        "privacy",
        "agl_privacy._layer:make_layer",
        config="agl_privacy._options:PrivacyOptions",
        summary="masks texts before they are stored",
    )


@hookimpl
def agl_register_commands(register: Register) -> None:
    for name, factory in (("rollouts.export", "rows_option"), ("store.export", "store_option")):
        register(f"{name}.--mask", f"agl_privacy._exports:{factory}", summary="mask personal data")

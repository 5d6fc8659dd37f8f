"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_commands(register: Register) -> None:
    for name, module, summary in (
        ("trace", "trace", "show what happened inside a run's rollouts"),
        ("rollouts", "rollouts", "export a run's rollouts as training data"),
        (
            "rollouts.export",
            "rollouts_export",
            "write what agents said and earned as training data",
        ),
        ("store", "store", "list, show, copy, delete and export a run's records"),
        ("store.copy", "store_copy", "copy records into another store, and compare them"),
        (
            "store.export",
            "store_export",
            "write a whole store as lines of JSON, or send it as traces",
        ),
        ("store.gc", "store_gc", "delete spans that are no longer needed"),
        ("store.ls", "store_ls", "list rollouts, and count them by status"),
        ("store.show", "store_show", "show one rollout with its attempts"),
    ):
        register(name, f"agl_records.commands._{module}:command", summary=summary)

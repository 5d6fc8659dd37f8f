"""Hooks of this package; this module does not import fsspec."""

from __future__ import annotations

from typing import Final

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl

_SCHEMES: Final = {
    "s3": "Amazon S3 and what speaks its protocol",
    "gs": "Google Cloud Storage",
    "gcs": "Google Cloud Storage",
    "az": "Azure Blob Storage",
    "abfs": "Azure Blob Storage",
    "hf": "the hub of Hugging Face",
    "http": "the web",
    "https": "the web",
    "file": "this machine",
    "memory": "this process, for tests",
}


@hookimpl
def agl_register_observers(register: Register) -> None:
    register(
        "storage",
        "agl_storage._observer:make_observer",
        extra="storage",
        config="agl_storage._options:StorageOptions",
        summary="mirrors checkpoints, report and prompts to object storage, and resumes from there",
    )


@hookimpl
def agl_register_tasks(register: Register) -> None:
    for scheme, place in _SCHEMES.items():
        register(
            f"{scheme}:",
            "agl_storage._tasks:read_tasks",
            extra="storage",
            summary=f"tasks from {place}",
        )


@hookimpl
def agl_register_commands(register: Register) -> None:
    for name, target, summary in (
        ("storage", "storage", "list, fetch and store what runs have in object storage"),
        ("storage.ls", "ls", "list what is stored, and whether it is whole"),
        ("storage.pull", "pull", "fetch a run, a checkpoint or an export, and check it"),
        ("storage.push", "push", "store a run, a checkpoint or an export"),
        ("export.--storage", "export_option", "also store what is exported"),
    ):
        register(name, f"agl_storage._commands:{target}", extra="storage", summary=summary)

"""The store: the durable record of a run's rollouts, attempts, spans and resources.

To add a store, derive a class from `BaseStore`, implement `Records` for the storage medium, and
register the class with options that derive from `BaseStoreOptions`::

    @hookimpl
    def agl_register_stores(register):
        register("mine", "my_package.store:make_store", config="my_package.store:MyOptions")

    def make_store(options: MyOptions, directory: Path) -> BaseStore: ...

The module `_transitions` defines the allowed state changes, `_operations` implements the store's
methods on any `Records`, and `base` adds waiting and notification.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_core.store._codec import (
        ATTEMPTS,
        RESOURCES,
        ROLLOUTS,
        SPANS,
        Codec,
        encode,
        encode_span,
        json_value,
    )
    from agl_core.store._operations import Changes, ClaimRequest, Operations
    from agl_core.store.base import BaseStore, BatchingStore, Retention
    from agl_core.store.lease import Clock, SystemClock
    from agl_core.store.locate import (
        StoreAddress,
        described,
        is_address,
        locate_store,
        make_store_at,
        of_file,
        open_for_reading,
        store_at,
        store_file,
        store_options,
        store_section,
    )
    from agl_core.store.memory import MemoryStore
    from agl_core.store.options import BaseStoreOptions, SqliteOptions, StoreOptions
    from agl_core.store.paging import attempt_records, rollout_pages
    from agl_core.store.prune import Prunable, Pruned
    from agl_core.store.reader import Readable
    from agl_core.store.records import Lead, Owner, Records
    from agl_core.store.sqlite import SqliteStore
    from agl_core.store.writing import whole_file

__all__ = [
    "ATTEMPTS",
    "RESOURCES",
    "ROLLOUTS",
    "SPANS",
    "BaseStore",
    "BaseStoreOptions",
    "BatchingStore",
    "Changes",
    "ClaimRequest",
    "Clock",
    "Codec",
    "Lead",
    "MemoryStore",
    "Operations",
    "Owner",
    "Prunable",
    "Pruned",
    "Readable",
    "Records",
    "Retention",
    "SqliteOptions",
    "SqliteStore",
    "StoreAddress",
    "StoreOptions",
    "SystemClock",
    "attempt_records",
    "described",
    "encode",
    "encode_span",
    "is_address",
    "json_value",
    "locate_store",
    "make_store_at",
    "of_file",
    "open_for_reading",
    "rollout_pages",
    "store_at",
    "store_file",
    "store_options",
    "store_section",
    "whole_file",
]

_MODULES = {
    "_codec": (
        "ATTEMPTS",
        "RESOURCES",
        "ROLLOUTS",
        "SPANS",
        "Codec",
        "encode",
        "encode_span",
        "json_value",
    ),
    "_operations": ("Changes", "ClaimRequest", "Operations"),
    "base": ("BaseStore", "BatchingStore", "Retention"),
    "lease": ("Clock", "SystemClock"),
    "locate": (
        "StoreAddress",
        "described",
        "is_address",
        "locate_store",
        "make_store_at",
        "of_file",
        "open_for_reading",
        "store_at",
        "store_file",
        "store_options",
        "store_section",
    ),
    "memory": ("MemoryStore",),
    "options": ("BaseStoreOptions", "SqliteOptions", "StoreOptions"),
    "paging": ("attempt_records", "rollout_pages"),
    "prune": ("Prunable", "Pruned"),
    "reader": ("Readable",),
    "records": ("Lead", "Owner", "Records"),
    "sqlite": ("SqliteStore",),
    "writing": ("whole_file",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name on first use: a `MemoryStore` then imports neither pydantic nor sqlite3."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value

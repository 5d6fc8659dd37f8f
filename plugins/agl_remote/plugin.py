"""The plugin's hooks, which register the store ``http`` and the command ``agl store serve``."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_stores(register: Register) -> None:
    register(
        "http",
        "agl_remote.store_client:make_store",
        config="agl_remote.options:HttpStoreOptions",
        summary="kept by agl store serve",
    )


@hookimpl
def agl_register_commands(register: Register) -> None:
    register(
        "store.serve",
        "agl_remote.store_serve:command",
        summary="serve a store to other processes",
    )

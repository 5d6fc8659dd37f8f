"""The plugin's hook: the store ``mongodb``."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_stores(register: Register) -> None:
    register(
        "mongodb",
        "agl_mongodb._store:make_store",
        extra="mongodb",
        config="agl_mongodb._options:MongoOptions",
        summary="a MongoDB database, which several processes and machines may use",
    )

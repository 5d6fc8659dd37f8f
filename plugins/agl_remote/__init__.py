"""The store ``http``: access to a store in another process over HTTP.

Reading order: `store_calls` (the messages), `store_client` (`HttpStore`), `store_server`
(`StoreServer`), `store_serve` (the command ``agl store serve``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from agl_remote.options import HttpStoreOptions
    from agl_remote.store_client import HttpStore
    from agl_remote.store_server import StoreServer

__all__ = ["HttpStore", "HttpStoreOptions", "StoreServer"]

_MODULES: Final = {
    "HttpStore": "store_client",
    "HttpStoreOptions": "options",
    "StoreServer": "store_server",
}
"""Module of each name. They are imported on first use, so that loading the plugin stays fast."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

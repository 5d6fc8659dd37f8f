"""Access to the store, gateway, runners and engine of other processes over HTTP.

Reading order: `rpc` (remote methods) and `peer` (their client, which retries while a server
restarts); `store_calls` (the messages), `store_client` (`HttpStore`), `store_server`
(`StoreServer`), `store_serve` (the command ``agl store serve``); `gateway_control` (the messages),
`gateway_client` (`RemoteGateway`), `gateway_serve` (the command ``agl gateway``); `runner_fleet`
(worker processes), `runner_serve` (the command ``agl runner``); `process` (settings of servers);
`engine` (the engine ``http``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from agl_remote.engine import HttpEngine, HttpOptions
    from agl_remote.gateway_client import RemoteGateway
    from agl_remote.gateway_control import GatewayControl
    from agl_remote.options import HttpStoreOptions
    from agl_remote.store_client import HttpStore
    from agl_remote.store_server import StoreServer

__all__ = [
    "GatewayControl",
    "HttpEngine",
    "HttpOptions",
    "HttpStore",
    "HttpStoreOptions",
    "RemoteGateway",
    "StoreServer",
]

_MODULES: Final = {
    "GatewayControl": "gateway_control",
    "HttpEngine": "engine",
    "HttpOptions": "engine",
    "HttpStore": "store_client",
    "HttpStoreOptions": "options",
    "RemoteGateway": "gateway_client",
    "StoreServer": "store_server",
}
"""Module of each name. They are imported on first use, so that loading the plugin stays fast."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

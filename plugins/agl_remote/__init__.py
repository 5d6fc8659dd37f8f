"""Access to the store, gateway, runners and engine of other processes over HTTP.

Reading order: `_rpc` (remote methods) and `_peer` (their client, which retries while a server
restarts); `_store_calls` (the messages), `_store_client` (`HttpStore`), `_store_server`
(`StoreServer`), `_store_serve` (the command ``agl store serve``); `_gateway_control` (the
messages), `_gateway_client` (`RemoteGateway`), `_gateway_serve` (the command ``agl gateway``);
`_runner` (runs attempts), `_runner_fleet` (worker processes), `_runner_serve` (the command
``agl runner``); `_process` (settings of servers); `_engine` (the engine ``http``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_remote._engine import HttpEngine as HttpEngine
    from agl_remote._engine import HttpOptions as HttpOptions
    from agl_remote._gateway_client import RemoteGateway as RemoteGateway
    from agl_remote._gateway_control import GatewayControl as GatewayControl
    from agl_remote._options import HttpStoreOptions as HttpStoreOptions
    from agl_remote._runner import RunnerObserver as RunnerObserver
    from agl_remote._store_client import HttpStore as HttpStore
    from agl_remote._store_server import StoreServer as StoreServer
else:
    __getattr__, __dir__, __all__ = late(__name__)

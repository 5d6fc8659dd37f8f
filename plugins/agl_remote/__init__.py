"""Access to the store, gateway, runners and engine of other processes over HTTP.

Reading order: `rpc` (remote methods) and `peer` (their client, which retries while a server
restarts); `store_calls` (the messages), `store_client` (`HttpStore`), `store_server`
(`StoreServer`), `store_serve` (the command ``agl store serve``); `gateway_control` (the messages),
`gateway_client` (`RemoteGateway`), `gateway_serve` (the command ``agl gateway``); `runner_fleet`
(worker processes), `runner_serve` (the command ``agl runner``); `process` (settings of servers);
`engine` (the engine ``http``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_remote.engine import HttpEngine as HttpEngine
    from agl_remote.engine import HttpOptions as HttpOptions
    from agl_remote.gateway_client import RemoteGateway as RemoteGateway
    from agl_remote.gateway_control import GatewayControl as GatewayControl
    from agl_remote.options import HttpStoreOptions as HttpStoreOptions
    from agl_remote.store_client import HttpStore as HttpStore
    from agl_remote.store_server import StoreServer as StoreServer
else:
    __getattr__, __dir__, __all__ = late(__name__)

"""HTTP between the components of a run and to backends: servers, clients, remote methods, keys.

Reading order: `asgi` (requests and answers), `server` (uvicorn on the run's event loop), `rpc`
(remote methods) and `peer` (their client, which retries while a server restarts), `client`
(requests to other programs, and their errors), `keys`; `backend_http` (a backend behind HTTP),
`answering` and `openai_server` (a backend of this process, served over HTTP).

Names are imported on first use, so that uvicorn and aiohttp are loaded only if they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_core.serving import asgi
    from agl_core.serving.answering import (
        COUNT_PATH,
        NOT_COUNTED,
        PROMPT_REFUSED,
        Answering,
        CountAnswer,
        count_prompt,
    )
    from agl_core.serving.backend_http import HttpBackend
    from agl_core.serving.client import (
        CONNECT_S,
        HttpClient,
        error_text,
        failures,
        is_address,
        proxy_for,
        reason,
    )
    from agl_core.serving.keys import (
        ENV_KEY,
        AttemptKeys,
        bearer_of,
        equal_keys,
        fresh_key,
        given_key,
        shared_key,
        withheld_key,
    )
    from agl_core.serving.openai_server import OpenAIServer, Translate
    from agl_core.serving.peer import Patience, Peer
    from agl_core.serving.rpc import RPC_PREFIX, RpcApp, RpcMethod, RpcRequest
    from agl_core.serving.server import (
        GuestServer,
        address_of,
        bind,
        rare_collections,
        serving_loop,
    )

__all__ = [
    "CONNECT_S",
    "COUNT_PATH",
    "ENV_KEY",
    "NOT_COUNTED",
    "PROMPT_REFUSED",
    "RPC_PREFIX",
    "Answering",
    "AttemptKeys",
    "CountAnswer",
    "GuestServer",
    "HttpBackend",
    "HttpClient",
    "OpenAIServer",
    "Patience",
    "Peer",
    "RpcApp",
    "RpcMethod",
    "RpcRequest",
    "Translate",
    "address_of",
    "asgi",
    "bearer_of",
    "bind",
    "count_prompt",
    "equal_keys",
    "error_text",
    "failures",
    "fresh_key",
    "given_key",
    "is_address",
    "proxy_for",
    "rare_collections",
    "reason",
    "serving_loop",
    "shared_key",
    "withheld_key",
]

_NAMES = {
    "answering": "COUNT_PATH NOT_COUNTED PROMPT_REFUSED Answering CountAnswer count_prompt",
    "backend_http": "HttpBackend",
    "client": "CONNECT_S HttpClient error_text failures is_address proxy_for reason",
    "keys": "ENV_KEY AttemptKeys bearer_of equal_keys fresh_key given_key shared_key withheld_key",
    "openai_server": "OpenAIServer Translate",
    "peer": "Patience Peer",
    "rpc": "RPC_PREFIX RpcApp RpcMethod RpcRequest",
    "server": "GuestServer address_of bind rare_collections serving_loop",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    from importlib import import_module  # noqa: PLC0415

    if name == "asgi":
        return import_module(f"{__name__}.asgi")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'agl_core.serving' has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value

"""HTTP between plugins and other programs: a client, a backend, and a server of a backend.

A library for plugins and trainers; it registers no hooks. Reading order: `_client` (requests, and
their errors), `_backend` (a backend behind an OpenAI-compatible endpoint), `_answering` and
`_server` (an endpoint for a backend of this process), `_keys` (the key of its clients), `_serve`
(with the dialects of plugins), `_throttle` (limits of requests to endpoints, which plugins supply),
`_tls` (options of commands).

Names are imported on first use, so that aiohttp and uvicorn are loaded only if they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_endpoints._answering import Answering as Answering
    from agl_endpoints._backend import HttpBackend as HttpBackend
    from agl_endpoints._client import CONNECT_S as CONNECT_S
    from agl_endpoints._client import HttpClient as HttpClient
    from agl_endpoints._client import failures as failures
    from agl_endpoints._client import is_address as is_address
    from agl_endpoints._client import reason as reason
    from agl_endpoints._client import sendable as sendable
    from agl_endpoints._client import untrusted as untrusted
    from agl_endpoints._keys import is_loopback as is_loopback
    from agl_endpoints._keys import key_for as key_for
    from agl_endpoints._serve import openai_server as openai_server
    from agl_endpoints._server import OneModel as OneModel
    from agl_endpoints._server import OpenAIServer as OpenAIServer
    from agl_endpoints._server import Routing as Routing
    from agl_endpoints._throttle import THROTTLES as THROTTLES
    from agl_endpoints._throttle import RequestThrottle as RequestThrottle
    from agl_endpoints._throttle import retry_after as retry_after
    from agl_endpoints._tls import SERVER_TLS as SERVER_TLS
    from agl_endpoints._tls import ca_option as ca_option
    from agl_endpoints._tls import make_ca_option as make_ca_option
    from agl_endpoints._tls import tls_options as tls_options
else:
    __getattr__, __dir__, __all__ = late(__name__)

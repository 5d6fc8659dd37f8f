"""HTTP between the components of a run: servers and keys.

Reading order: `asgi` (requests and answers), `_server` (uvicorn on the run's event loop), `_keys`. The
package `agl_endpoints` has clients and a server of a backend.

Names are imported on first use, so that uvicorn is loaded only if it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_core.serving._keys import ENV_KEY as ENV_KEY
    from agl_core.serving._keys import AttemptKeys as AttemptKeys
    from agl_core.serving._keys import bearer_of as bearer_of
    from agl_core.serving._keys import equal_keys as equal_keys
    from agl_core.serving._keys import fresh_key as fresh_key
    from agl_core.serving._keys import given_key as given_key
    from agl_core.serving._keys import shared_key as shared_key
    from agl_core.serving._keys import withheld_key as withheld_key
    from agl_core.serving._server import GuestServer as GuestServer
    from agl_core.serving._server import address_of as address_of
    from agl_core.serving._server import bind as bind
    from agl_core.serving._server import tls_context as tls_context
    from agl_core.serving.asgi import RPC_PREFIX as RPC_PREFIX
    from agl_core.serving.asgi import Translate as Translate
    from agl_core.serving.asgi import error_text as error_text
else:
    __getattr__, __dir__, __all__ = late(__name__)

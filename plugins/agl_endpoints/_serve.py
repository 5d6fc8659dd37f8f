"""A server of backends for any OpenAI client, without a run."""

from __future__ import annotations

from collections.abc import Callable

from agl_core.app import all_of, load_plugins
from agl_core.gateway import translations
from agl_core.plugins import PluginManager
from agl_endpoints._server import OpenAIServer, Routing
from agl_endpoints._tls import SERVER_TLS


def openai_server(
    routing: Routing, *, plugins: Callable[[], PluginManager] = load_plugins, key: str = ""
) -> OpenAIServer:
    """Return a server of chat completions and of the dialects of plugins, without starting it.

    Args:
        routing: Finds the backends, which the caller closes; `OneModel` for a single one.
        plugins: Loads the plugins, for their dialects.
        key: The bearer token that every request needs; empty to serve all.

    It serves ``https://`` where `SERVER_TLS` is set.

    Raises:
        PluginError: the name of a dialect is not ``POST`` and a path, or is taken.
    """
    by_path = translations(all_of(plugins().registry("dialects")))
    dialects = {f"/v1{path}": translate for path, translate in by_path.items()}
    return OpenAIServer(routing, dialects=dialects, key=key, tls=SERVER_TLS.get())

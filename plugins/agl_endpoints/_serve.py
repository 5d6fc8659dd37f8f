"""A server of a backend for any OpenAI client, without a run."""

from __future__ import annotations

from collections.abc import Callable

from agl_core.app import load_plugins, make_dialects
from agl_core.gateway import translations
from agl_core.interfaces import Backend
from agl_core.plugins import PluginManager
from agl_endpoints._server import OpenAIServer


def openai_server(
    backend: Backend, *, model: str, plugins: Callable[[], PluginManager] = load_plugins
) -> OpenAIServer:
    """Return a server of chat completions and of the dialects of plugins, without starting it.

    Args:
        backend: The backend; the caller closes it.
        model: Name of the served model.
        plugins: Loads the plugins, for their dialects.

    Raises:
        PluginError: the name of a dialect is not ``POST`` and a path, or is taken.
    """
    by_path = translations(make_dialects(plugins()))
    dialects = {f"/v1{path}": translate for path, translate in by_path.items()}
    return OpenAIServer(backend, model=model, dialects=dialects)

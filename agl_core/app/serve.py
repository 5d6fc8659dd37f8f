"""One backend as a server for any OpenAI client, in every dialect that plugins add."""

from __future__ import annotations

from collections.abc import Callable

from agl_core.app.parts import make_dialects
from agl_core.builtin import load_plugins
from agl_core.gateway import translating
from agl_core.interfaces import Backend
from agl_core.plugins import PluginManager
from agl_core.serving import OpenAIServer


def openai_server(
    backend: Backend, *, model: str, plugins: Callable[[], PluginManager] = load_plugins
) -> OpenAIServer:
    """A server of chat completions, and of the dialects of plugins, that does not listen yet.

    Args:
        backend: Stays its maker's, who closes it.
        model: Name of what it serves.
        plugins: Loads them, for their dialects.
    """
    dialects = {
        f"/v1{name.partition(' ')[2]}": translating(dialect)
        for name, dialect in make_dialects(plugins()).items()
    }
    return OpenAIServer(backend, model=model, dialects=dialects)

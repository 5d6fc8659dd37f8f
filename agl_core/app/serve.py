"""One backend as a server for any OpenAI client, in both of OpenAI's forms."""

from __future__ import annotations

from agl_core.gateway.responses import as_chat
from agl_core.interfaces import Backend
from agl_core.serving.openai_server import OpenAIServer


def openai_server(backend: Backend, *, model: str) -> OpenAIServer:
    """A server of chat completions and Responses that does not listen yet.

    Args:
        backend: Stays its maker's, who closes it.
        model: Name of what it serves.
    """
    return OpenAIServer(backend, model=model, dialects={"/v1/responses": as_chat})

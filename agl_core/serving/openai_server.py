"""One backend of this process as the OpenAI-compatible server that any client knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agl_core.interfaces import Backend
from agl_core.serving import asgi
from agl_core.serving.answering import Answering
from agl_core.serving.counting import PATH, answer_of
from agl_core.serving.problems import Problem
from agl_core.serving.server import GuestServer, address_of, bind

_CHAT: Final = "/v1/chat/completions"
_MODELS: Final = "/v1/models"
_METHODS: Final = {_CHAT: "POST", PATH: "POST", _MODELS: "GET"}
_LARGEST: Final = 64 * 1024 * 1024
"""Bytes of a request's body."""


class OpenAIServer:
    """Chat completions, the list of models, and vLLM's ``/tokenize``, for whoever asks.

    The backend belongs to whoever made it: the server never closes it.
    """

    def __init__(self, backend: Backend, *, model: str) -> None:
        """Set up without listening.

        Args:
            model: What the list of models names; requests may name another one.
        """
        self._backend = backend
        self._model = model
        self._answering = Answering("The server is ending")
        self._server = GuestServer(self._app)

    async def start(self, host: str, port: int) -> str:
        """Listen; gives ``http://host:port``.

        Args:
            port: 0 for one that the system chooses.

        Raises:
            ConfigError: the address is taken or not ours.
        """
        listener = bind(host, port)
        await self._server.start(listener)
        return address_of(listener)

    async def stop(self) -> None:
        """Break off answers under way and close the socket; idempotent."""
        self._answering.end()
        await self._server.stop()

    async def _app(self, scope: Mapping[str, Any], receive: asgi.Receive, send: asgi.Send) -> None:
        try:
            _check(scope)
            body = await asgi.read_body(receive, largest=_LARGEST)
            if scope["path"] == _CHAT:
                await self._answering.answer(self._backend, body, scope, receive, send)
                return
            counting = scope["path"] == PATH
            answer = await answer_of(self._backend, body) if counting else self._models()
            await asgi.respond(send, 200, answer)
        except asgi.ClientLeft:
            return
        except asgi.TooLarge:
            problem = Problem(413, "too_large", f"A request's body has at most {_LARGEST} bytes")
            await asgi.respond(send, problem.status, problem.body())
        except Problem as problem:
            await asgi.respond(send, problem.status, problem.body())

    def _models(self) -> bytes:
        row = {"id": self._model, "object": "model"}
        return msgspec.json.encode({"object": "list", "data": [row]})


def _check(scope: Mapping[str, Any]) -> None:
    path, method = scope["path"], scope["method"]
    taken = _METHODS.get(path)
    if taken is None:
        raise Problem(404, "not_found", f"{path!r} is none of {', '.join(_METHODS)}")
    if method != taken:
        raise Problem(405, "method_not_allowed", f"{path} takes {taken}, not {method}")

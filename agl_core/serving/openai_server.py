"""One backend of this process as an OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from agl_core.interfaces import Backend, Problem
from agl_core.serving import asgi
from agl_core.serving.answering import COUNT_PATH, Answering, count_prompt
from agl_core.serving.server import GuestServer, address_of, bind

_CHAT: Final = "/v1/chat/completions"
_MODELS: Final = "/v1/models"
_METHODS: Final = {_CHAT: "POST", COUNT_PATH: "POST", _MODELS: "GET"}

Translate = Callable[[bytes, asgi.Send], tuple[bytes, asgi.Send]]
"""Maps a request's body and ``send`` to those of a chat completion; raises `Problem`."""
_LARGEST: Final = 64 * 1024 * 1024
"""Bytes of a request's body."""


class _Asked(msgspec.Struct):
    model: str | None = None


class OpenAIServer:
    """Chat completions, the list of models and ``/tokenize``, for any client.

    The caller closes the backend; the server never does.
    """

    def __init__(
        self, backend: Backend, *, model: str, dialects: Mapping[str, Translate] | None = None
    ) -> None:
        """Set up without listening.

        Args:
            model: The one that is served; a request that names another one gets 404.
            dialects: Paths that take another form of a chat completion.
        """
        self._backend = backend
        self._model = model
        self._dialects = dict(dialects or {})
        self._methods = {**_METHODS, **dict.fromkeys(self._dialects, "POST")}
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

    async def _app(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        try:
            path: str = scope["path"]
            self._check(path, scope["method"])
            body = await asgi.read_body(receive, largest=_LARGEST)
            if path == _MODELS:
                await asgi.respond(send, 200, self._models())
                return
            self._check_model(body)
            if path == COUNT_PATH:
                await asgi.respond(send, 200, await count_prompt(self._backend, body))
                return
            await self._answer(body, scope, send)
        except asgi.ClientLeft:
            return
        except asgi.TooLarge:
            problem = Problem(413, "too_large", f"A request's body has at most {_LARGEST} bytes")
            await asgi.respond(send, problem.status, problem.body())
        except Problem as problem:
            await asgi.respond(send, problem.status, problem.body())

    async def _answer(self, body: bytes, scope: asgi.Scope, send: asgi.Send) -> None:
        reply = sent = asgi.CountedSend(send)
        dialect = self._dialects.get(scope["path"])
        if dialect is not None:
            body, reply = dialect(body, sent)
        await self._answering.answer(self._backend, body, scope, reply)
        # A dialect keeps the head of a whole answer until its body is there.
        if not sent.status:
            message = "The backend's answer broke off: send the request again"
            raise Problem(502, "engine_error", message, retry=True)

    def _models(self) -> bytes:
        row = {"id": self._model, "object": "model"}
        return msgspec.json.encode({"object": "list", "data": [row]})

    def _check(self, path: str, method: str) -> None:
        taken = self._methods.get(path)
        if taken is None:
            raise Problem(404, "not_found", f"{path!r} is none of {', '.join(self._methods)}")
        if method != taken:
            raise Problem(405, "method_not_allowed", f"{path} takes {taken}, not {method}")

    def _check_model(self, body: bytes) -> None:
        """Refuse another model; other faults of a body are left to its reader."""
        try:
            asked = msgspec.json.decode(body, type=_Asked).model
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if asked not in (None, self._model):
            message = f"Model {asked!r} is not served here: ask for {self._model!r}"
            raise Problem(404, "model_not_found", message)

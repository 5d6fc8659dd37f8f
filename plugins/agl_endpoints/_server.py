"""An OpenAI-compatible server for one backend of this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from agl_core.gateway import count_prompt
from agl_core.interfaces import COUNT_PATH, Backend, Problem
from agl_core.serving import GuestServer, address_of, asgi, bind
from agl_endpoints._answering import Answering

_CHAT: Final = "/v1/chat/completions"
_MODELS: Final = "/v1/models"
_METHODS: Final = {_CHAT: "POST", COUNT_PATH: "POST", _MODELS: "GET"}

_LARGEST: Final = 64 * 1024 * 1024
"""Largest number of bytes of a request's body."""


class _Asked(msgspec.Struct):
    model: str | None = None


class OpenAIServer:
    """Server for chat completions, the list of models and ``/tokenize``; it checks no key.

    The server never closes the backend; its caller does.
    """

    def __init__(
        self, backend: Backend, *, model: str, dialects: Mapping[str, asgi.Translate] | None = None
    ) -> None:
        """Create a server that does not listen yet.

        Args:
            backend: The backend that answers.
            model: Name of the served model; a request for another one gets 404.
            dialects: Translations of dialects by path.
        """
        self._backend = backend
        self._model = model
        self._dialects = dict(dialects or {})
        self._methods = {**_METHODS, **dict.fromkeys(self._dialects, "POST")}
        self._answering = Answering("The server is ending")
        self._server = GuestServer(self._app)

    async def start(self, host: str, port: int) -> str:
        """Start to listen; return ``http://host:port``.

        Args:
            host: Host name or address of this machine.
            port: Port; 0 for one that the operating system chooses.

        Raises:
            ConfigError: the address is in use or does not belong to this machine.
        """
        listener = bind(host, port)
        await self._server.start(listener)
        return address_of(listener)

    async def stop(self) -> None:
        """Abort running answers and close the socket; idempotent."""
        self._answering.end()
        await self._server.stop()

    async def _app(self, scope: asgi.AsgiScope, receive: asgi.Receive, send: asgi.Send) -> None:
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

    async def _answer(self, body: bytes, scope: asgi.AsgiScope, send: asgi.Send) -> None:
        reply = sent = asgi.CountedSend(send)
        dialect = self._dialects.get(scope["path"])
        if dialect is not None:
            body, reply = dialect(body, sent)
        await self._answering.answer(self._backend, body, scope, reply)
        # A dialect holds back the head of an answer without a stream until its body is complete.
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
        """Refuse a request for another model; an invalid body is reported by a later step."""
        try:
            asked = msgspec.json.decode(body, type=_Asked).model
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if asked not in (None, self._model):
            message = f"Model {asked!r} is not served here: ask for {self._model!r}"
            raise Problem(404, "model_not_found", message)

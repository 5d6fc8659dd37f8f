"""An OpenAI-compatible server for one backend of this process."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ssl import SSLContext
from typing import Final, Protocol

import msgspec
from agl_counting import count_prompt

from agl_core.interfaces import COUNT_PATH, Backend, Problem
from agl_core.serving import GuestServer, address_of, asgi, bearer_of, bind, equal_keys
from agl_core.text import decoded, url_unquoted
from agl_endpoints._answering import Answering

_CHAT: Final = "/v1/chat/completions"
_MODELS: Final = "/v1/models"
_METHODS: Final = {_CHAT: "POST", COUNT_PATH: "POST", _MODELS: "GET"}

_PATH: Final = re.compile(rb"/agent/(?P<agent>[^/]+)(?P<rest>/.*)")
"""The path of a request that names its agent."""
_LARGEST: Final = 64 * 1024 * 1024
"""Largest number of bytes of a request's body."""


class _Asked(msgspec.Struct):
    model: str | None = None


class Routing(Protocol):
    """Finds what answers a request."""

    @property
    def models(self) -> Sequence[str]:
        """Names of the served models, for ``/v1/models``."""
        ...

    def find(self, agent: str, body: bytes) -> tuple[Backend, bytes]:
        """Return the backend of a request, and the body to send to it.

        Args:
            agent: The agent in the path; empty without one.
            body: A chat completion request, or one for ``/tokenize``, which may be malformed.

        Raises:
            Problem: nothing answers it, or the body is malformed.
        """
        ...


class OneModel:
    """A backend that answers all requests for its model; it changes none of them."""

    def __init__(self, backend: Backend, model: str) -> None:
        """Name the model; a request for another one gets 404."""
        self._backend = backend
        self.models = (model,)

    def find(self, agent: str, body: bytes) -> tuple[Backend, bytes]:
        """Return the backend; it answers every agent, and reports a malformed body itself."""
        del agent
        try:
            asked = msgspec.json.decode(body, type=_Asked).model
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            asked = None
        if asked not in (None, *self.models):
            message = f"Model {asked!r} is not served here: ask for {self.models[0]!r}"
            raise Problem(404, "model_not_found", message)
        return self._backend, body


class OpenAIServer:
    """Server for chat completions, the list of models and ``/tokenize``.

    A request may name its agent in the path: ``/agent/NAME/v1/chat/completions``. The server never
    closes the backends; its caller does.
    """

    def __init__(
        self,
        routing: Routing,
        *,
        dialects: Mapping[str, asgi.Translate] | None = None,
        key: str = "",
        tls: SSLContext | None = None,
    ) -> None:
        """Create a server that does not listen yet.

        Args:
            routing: Finds the backends that answer.
            dialects: Translations of dialects by path.
            key: The bearer token that every request needs; empty to serve all.
            tls: Serve ``https://``; see `agl_core.serving.tls_context`.
        """
        self._routing = routing
        self._key = key
        self._dialects = dict(dialects or {})
        self._methods = {**_METHODS, **dict.fromkeys(self._dialects, "POST")}
        self._answering = Answering("The server is ending")
        self._tls = tls
        self._server = GuestServer(self._app, tls=tls)

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
        return address_of(listener, tls=self._tls)

    async def stop(self) -> None:
        """Abort running answers and close the socket; idempotent."""
        self._answering.end()
        await self._server.stop()

    async def _app(self, scope: asgi.AsgiScope, receive: asgi.Receive, send: asgi.Send) -> None:
        try:
            self._admit(scope)
            agent, path = _target(scope["raw_path"])
            self._check(path, scope["method"])
            body = await asgi.read_body(receive, largest=_LARGEST)
            if path == _MODELS:
                await asgi.respond(send, 200, self._models())
                return
            if path == COUNT_PATH:
                counted = await count_prompt(*self._routing.find(agent, body))
                await asgi.respond(send, 200, msgspec.json.encode(counted))
                return
            await self._answer(agent, body, self._dialects.get(path), scope, send)
        except asgi.ClientLeft:
            return
        except asgi.TooLarge:
            problem = Problem(413, "too_large", f"A request's body has at most {_LARGEST} bytes")
            await asgi.respond(send, problem.status, problem.body())
        except Problem as problem:
            await asgi.respond(send, problem.status, problem.body())

    async def _answer(
        self,
        agent: str,
        body: bytes,
        dialect: asgi.Translate | None,
        scope: asgi.AsgiScope,
        send: asgi.Send,
    ) -> None:
        reply = sent = asgi.CountedSend(send)
        if dialect is not None:
            body, reply = dialect(body, sent)
        backend, body = self._routing.find(agent, body)
        await self._answering.answer(backend, body, scope, reply)
        # A dialect holds back the head of an answer without a stream until its body is complete.
        if not sent.status:
            message = "The backend's answer broke off: send the request again"
            raise Problem(502, "engine_error", message, retry=True)

    def _models(self) -> bytes:
        rows = [{"id": name, "object": "model"} for name in self._routing.models]
        return msgspec.json.encode({"object": "list", "data": rows})

    def _admit(self, scope: asgi.AsgiScope) -> None:
        if self._key and not equal_keys(bearer_of(scope["headers"]), self._key):
            message = (
                "The request's bearer token is not this server's key: set the client's API key"
            )
            raise Problem(401, "invalid_api_key", message)

    def _check(self, path: str, method: str) -> None:
        taken = self._methods.get(path)
        if taken is None:
            raise Problem(404, "not_found", f"{path!r} is none of {', '.join(self._methods)}")
        if method != taken:
            raise Problem(405, "method_not_allowed", f"{path} takes {taken}, not {method}")


def _target(raw_path: bytes) -> tuple[str, str]:
    """Return the agent in a path, empty without one, and the rest of the path.

    Raises:
        Problem: 400; the agent is not percent-encoded UTF-8.
    """
    path = raw_path.partition(b"?")[0]
    match = _PATH.fullmatch(path)
    if match is None:
        return "", decoded(path)
    try:
        return url_unquoted(match["agent"].decode("ascii")), decoded(match["rest"])
    except UnicodeDecodeError as error:
        message = f"Agent {match['agent']!r} is not percent-encoded UTF-8"
        raise Problem(400, "identity_encoding", message) from error

"""HTTP routes that plugins add to the gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from agl_core.interfaces.serving import Backend
from agl_core.interfaces.store import Store
from agl_core.types import Losses


class Problem(Exception):  # noqa: N818  an answer, not a failure of the server
    """An HTTP error answer in the form that OpenAI's clients read."""

    def __init__(
        self, status: int, code: str, message: str, *, retry: bool = False, param: str | None = None
    ) -> None:
        """Describe the answer.

        Args:
            status: HTTP status.
            code: Machine-readable cause, ``error.code`` in the body.
            message: What failed, the value, and the fix.
            retry: Whether clients that retry by status should do so.
            param: The field of the request that is at fault.
        """
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry = retry
        self.param = param

    def body(self) -> bytes:
        kind = "invalid_request_error" if self.status < 500 else "gateway_error"  # noqa: PLR2004
        error: dict[str, Any] = {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error})


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt and agent of a request."""

    rollout_id: str
    attempt_id: str
    call_id: str
    """Minted by the gateway when the caller minted none."""
    agent: str = ""
    """Empty when the caller named none."""
    alias: str = ""
    """What the program calls the agent in this attempt; empty without one."""
    agent_run_id: str = ""
    trainable: bool = True

    @property
    def known_as(self) -> str:
        """Name that policies go by."""
        return self.alias or self.agent


class RouteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a route answers."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"


class RouteRequest(Protocol):
    """A request whose key is one of the run's, or the operators' where the route allows it."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Names are in lower case."""
        ...

    @property
    def named(self) -> bool:
        """Whether URL or headers name an attempt."""
        ...

    def identity(self) -> Identity:
        """The attempt, agent and call that the request names, which its key opens.

        Raises:
            Problem: 400, it names no attempt, or two; 403, its key does not open the attempt.
        """
        ...

    def admit(self, rollout_id: str, attempt_id: str) -> None:
        """Check that the key opens an attempt, and that this runs.

        Raises:
            Problem: 403, the key is another attempt's; 404 or 503, the gateway does not know the attempt;
                410, it has ended.
        """
        ...

    def backend(self, identity: Identity, model: str) -> tuple[Backend, str]:
        """The backend that answers an agent's calls for a model, and the backend's name for that model.

        Raises:
            Problem: no policy serves the agent.
        """
        ...

    async def body(self, *, largest: int | None = None, advice: str = "") -> bytes:
        """The whole body.

        Args:
            largest: In bytes; None for any size.
            advice: What a sender of more should do, as in the error's message.

        Raises:
            Problem: 413; it is larger.
        """
        ...


class GatewayRoute(Protocol):
    """Answers the requests of one method and path."""

    operators: bool
    """Whether the operators' key opens it, too, for every attempt."""

    async def serve(self, request: RouteRequest) -> RouteAnswer:
        """Answer one request.

        Raises:
            Problem: it is answered with an error.
        """
        ...


RouteFactory = Callable[[Store, Losses], GatewayRoute]
"""Makes a route of a gateway from its store and its loss counter. It is registered under the method
and the path below ``/v1``, such as ``POST /traces``."""

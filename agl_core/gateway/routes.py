"""What the routes of plugins are given of the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agl_core import semconv
from agl_core.gateway.attempts import Attempts
from agl_core.gateway.routing import Caller, Router
from agl_core.interfaces import Backend, GatewayRoute, Identity, Problem
from agl_core.serving import asgi

_NAMES: Final = (semconv.HEADER_ROLLOUT.encode(), semconv.HEADER_ATTEMPT.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; fulfils `agl_core.interfaces.RouteRequest`."""

    caller: Caller
    attempts: Attempts
    router: Router
    receive: asgi.Receive

    @property
    def headers(self) -> Mapping[str, str]:
        return {
            name.decode("latin-1"): value.decode("latin-1") for name, value in self.caller.headers
        }

    @property
    def named(self) -> bool:
        return bool(self.caller.target.rollout_id) or any(
            name in _NAMES for name, _ in self.caller.headers
        )

    def identity(self) -> Identity:
        return self.caller.identity()

    def admit(self, rollout_id: str, attempt_id: str) -> None:
        self.caller.check(rollout_id, attempt_id)
        self.attempts.admit(Identity(rollout_id=rollout_id, attempt_id=attempt_id, call_id=""))

    def backend(self, identity: Identity, model: str) -> tuple[Backend, str]:
        route = self.router.find(identity.known_as, model)
        return route.backend, route.upstream_model

    async def body(self, *, largest: int | None = None, advice: str = "") -> bytes:
        try:
            return await asgi.read_body(self.receive, largest=largest)
        except asgi.TooLarge as error:
            message = f"The request has more than {largest} bytes: {advice}"
            raise Problem(413, "too_large", message) from error


async def answer_route(route: GatewayRoute, request: Request, send: asgi.Send) -> None:
    """Answer a request by a route.

    Raises:
        Problem: it is answered with an error.
    """
    try:
        answer = await route.serve(request)
    except asgi.ClientLeft:
        return
    head = ((b"content-type", answer.content_type.encode()),)
    await asgi.respond(send, answer.status, answer.body, headers=head)

"""The gateway's paths: model calls, the list of models, routes of plugins.

All of them check a key; only ``/health`` does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from agl_core import semconv
from agl_core.errors import PluginError
from agl_core.gateway import _chat as chat
from agl_core.gateway._attempts import Attempts, OpenAttempt
from agl_core.gateway._proxy import Proxy, send_problem
from agl_core.gateway._recording import Recording
from agl_core.gateway._routing import Caller, Route, Router, Target, parse_path, registered_path
from agl_core.gateway._translation import translations
from agl_core.interfaces import (
    Access,
    Admission,
    Backend,
    Dialect,
    GatewayRoute,
    Identity,
    JsonObjects,
    Problem,
)
from agl_core.serving import (
    ENV_KEY,
    RPC_PREFIX,
    AttemptKeys,
    Translate,
    asgi,
    bearer_of,
    equal_keys,
)
from agl_core.text import decoded
from agl_core.types import Losses, Policy

_LIST: Final = "/models"
_HEALTH: Final = b"/health"
_GENERATION: Final = tuple(f"/{name}" for name in semconv.GENERATION_OPERATIONS)
"""Endings of the paths of model requests, including those of dialects that are not served."""
_IDENTITY: Final = (semconv.HEADER_ROLLOUT.encode(), semconv.HEADER_ATTEMPT.encode())
_CONTROL: Final = RPC_PREFIX.encode()
_UNOWNED: Final = {
    "identity_missing": "calls_without_identity",
    "identity_conflict": "calls_with_conflicting_identity",
    "identity_encoding": "calls_with_conflicting_identity",
    "wrong_attempt_key": "calls_with_wrong_key",
}
"""Error code to cause of loss, for model requests with a key of the run but without an attempt."""


@dataclass(eq=False, slots=True, kw_only=True)
class Endpoints:
    """The gateway's ASGI application."""

    keys: AttemptKeys
    """Derives the agents' keys."""
    router: Router
    attempts: Attempts
    recording: Recording
    proxy: Proxy
    losses: Losses
    operator_key: str
    """Key for the routes that operators have access to."""
    routes: Mapping[str, GatewayRoute]
    """Routes of plugins, by method and path below ``/v1``, such as ``POST /traces``; those for
    operators only by method and whole path."""
    dialects: Mapping[str, Dialect]
    """Dialects of plugins, by method and path below ``/v1``."""
    admissions: Sequence[Admission] = ()
    """Checks of model requests, in order."""
    control: asgi.AsgiApp | None = None
    """Application for paths below `RPC_PREFIX`; it checks its own key."""
    _dialects: dict[str, Translate | None] = field(init=False)
    """Translation of each path; None for chat completions, which need none."""
    _model_paths: tuple[str, ...] = field(init=False)
    """Endings of the paths of model requests."""

    def __post_init__(self) -> None:
        """Check the routes and dialects.

        Raises:
            PluginError: a name is not a method and path, or the gateway serves the path itself.
        """
        self._dialects = {chat.PATH: None, **translations(self.dialects)}
        self._model_paths = (*_GENERATION, *self._dialects)
        for name, route in self.routes.items():
            path = registered_path("Route", name, taken=f"GET {_LIST}")
            if route.access == "operators":
                self._check_operators_path(name, path)
            elif self._is_model(name.partition(" ")[0], path):
                raise PluginError(
                    f"Route {name!r} cannot be served: requests to paths that end in "
                    f"{path[path.rindex('/') :]} are model requests; register a dialect, or choose "
                    f"another path"
                )

    def _check_operators_path(self, name: str, path: str) -> None:
        raw = path.encode()
        if raw == _HEALTH or raw.startswith(_CONTROL) or parse_path(raw) is not None:
            raise PluginError(
                f"Route {name!r} cannot be served: a path for operators only is none of "
                f"{_HEALTH.decode()}, below {RPC_PREFIX} or below /v1; choose another path"
            )

    async def __call__(self, scope: dict[str, Any], receive: asgi.Receive, send: asgi.Send) -> None:
        try:
            await self._dispatch(scope, receive, send)
        except Problem as problem:
            await send_problem(send, problem)

    async def _dispatch(
        self, scope: dict[str, Any], receive: asgi.Receive, send: asgi.Send
    ) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        raw_path: bytes = scope["raw_path"]
        if raw_path == _HEALTH:
            body = b'{"status":"ok","in_flight":%d}' % len(self.proxy.calls)
            await asgi.respond(send, 200, body)
            return
        if self.control is not None and raw_path.startswith(_CONTROL):
            await self.control(scope, receive, send)
            return
        method: str = scope["method"]
        token = bearer_of(headers)
        path = decoded(raw_path.partition(b"?")[0])
        target = self._target(raw_path, is_model=self._is_model(method, path), token=token)
        route = self._route(method, target, path)
        operator = self._authorise(token, "agents" if route is None else route.access)
        caller = Caller(target or Target(path), headers, token, self.keys, operator)
        if route is not None:
            await _answer_route(route, ReceivedRequest(self, caller, receive), send)
        elif target is None or not await self._serve(scope, caller, receive, send):
            raise self._not_served(method, path, caller)

    def _route(self, method: str, target: Target | None, path: str) -> GatewayRoute | None:
        """Return the route for a request: one for operators only if the path is not below /v1."""
        route = self.routes.get(f"{method} {path if target is None else target.path}")
        if route is not None and (route.access == "operators") is (target is None):
            return route
        return None

    def _target(self, raw_path: bytes, *, is_model: bool, token: str) -> Target | None:
        try:
            return parse_path(raw_path)
        except Problem as problem:
            if is_model and self.keys.belongs(token):
                self.losses.add(_UNOWNED[problem.code])
            raise

    async def _serve(
        self, scope: asgi.AsgiScope, caller: Caller, receive: asgi.Receive, send: asgi.Send
    ) -> bool:
        """Answer one request below ``/v1``; return False if the gateway does not serve its path."""
        method, path = scope["method"], caller.target.path
        if method == "POST" and path in self._dialects:
            await self._generate(scope, caller, receive, send)
        elif method == "GET" and path == _LIST:
            await asgi.respond(send, 200, self._models())
        else:
            return False
        return True

    def _authorise(self, token: str, access: Access) -> bool:
        """Check that a request's key belongs to this run; its attempt is checked later.

        Returns:
            Whether it is the operators' key.

        Raises:
            Problem: 401; the key does not.
        """
        if access != "agents" and equal_keys(token, self.operator_key):
            return True
        if access == "operators":
            message = f"This path takes the operators' key, which is set in {ENV_KEY}"
            raise Problem(401, "invalid_api_key", message)
        if not self.keys.belongs(token):
            message = (
                "Wrong API key: send 'Authorization: Bearer' with the key of the attempt, "
                "agl_core.current().llm.api_key"
            )
            raise Problem(401, "invalid_api_key", message)
        return False

    def _models(self) -> bytes:
        rows = [
            {"id": name, "object": "model", "created": 0, "owned_by": "agl"}
            for name in self.router.policies
        ]
        return msgspec.json.encode({"object": "list", "data": rows})

    async def _generate(
        self, scope: asgi.AsgiScope, caller: Caller, receive: asgi.Receive, send: asgi.Send
    ) -> None:
        identity = self._identify(caller)
        attempt = self._admit(identity)
        send = output = asgi.CountedSend(send)
        try:
            body = await asgi.read_body(receive)
            # The attempt may have been sealed while the body was read.
            self._admit(identity)
            if translate := self._dialects[caller.target.path]:
                body, send = translate(body, send)
            request, route = self._accept(identity, attempt, body)
            for admission in self.admissions:
                address, policy = (scope["client"] or ("",))[0], route.policy.name
                await admission.admit(identity, key=caller.token, address=address, policy=policy)
                self._admit(identity)
        except asgi.ClientLeft:
            problem = Problem(
                499, "client_closed", "The client left before its request was complete"
            )
            self._refused(identity, attempt, problem)
            return
        except Problem as problem:
            self._refused(identity, attempt, problem)
            raise
        call = attempt.begin(identity, request, asgi.passed_on(caller.headers))
        call.output, call.translated = output, send is not output
        await self.proxy.serve(call, route, scope, send)

    def _identify(self, caller: Caller) -> Identity:
        """Identify a model request; count one that belongs to no attempt, by cause."""
        try:
            return caller.identity()
        except Problem as problem:
            self.losses.add(_UNOWNED[problem.code])
            raise

    def _admit(self, identity: Identity) -> OpenAttempt:
        try:
            return self.attempts.admit(identity)
        except Problem:
            self.losses.add("late_calls")
            raise

    def _accept(
        self, identity: Identity, attempt: OpenAttempt, body: bytes
    ) -> tuple[chat.ChatRequest, Route]:
        if attempt.seconds_left() <= 0:
            message = f"The deadline of attempt {identity.attempt_id!r} has passed"
            raise Problem(504, "deadline_exceeded", message)
        attempt.check_alias(identity)
        request = chat.ChatRequest(body)
        return request, self.router.find(identity, request.model, attempt.rollout)

    def _refused(self, identity: Identity, attempt: OpenAttempt, problem: Problem) -> None:
        """Record a refused request, so that the client's span of the call has a record to join."""
        if not attempt.sealed:
            self.recording.refuse(attempt, identity, problem)

    def _not_served(self, method: str, path: str, caller: Caller) -> Problem:
        """Return the 404 for an unknown path; record or count the request if it asks a model."""
        served = " or ".join(self._dialects)
        message = f"The gateway serves no {method} {path}: use POST .../v1{served}"
        problem = Problem(404, "not_found", message)
        if self._is_model(method, path):
            identity = self._identify(caller)
            self._refused(identity, self._admit(identity), problem)
        return problem

    def _is_model(self, method: str, path: str) -> bool:
        """Whether a request is a model request, in any dialect."""
        return method == "POST" and path.endswith(self._model_paths)


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request to a plugin's route; implements `agl_core.interfaces.RouteRequest`."""

    endpoints: Endpoints
    caller: Caller
    receive: asgi.Receive

    @property
    def headers(self) -> Mapping[str, str]:
        return {
            name.decode("latin-1"): value.decode("latin-1") for name, value in self.caller.headers
        }

    @property
    def named(self) -> bool:
        return bool(self.caller.target.rollout_id) or any(
            name in _IDENTITY for name, _ in self.caller.headers
        )

    @property
    def in_flight(self) -> int:
        return len(self.endpoints.proxy.calls)

    @property
    def open_attempts(self) -> int:
        return sum(1 for _ in self.endpoints.attempts)

    def identity(self) -> Identity:
        return self.caller.identity()

    def admit(self, rollout_id: str, attempt_id: str) -> None:
        self.caller.check(rollout_id, attempt_id)
        self.endpoints.attempts.admit(
            Identity(rollout_id=rollout_id, attempt_id=attempt_id, call_id="")
        )

    def rewritten(
        self, identity: Identity, messages: JsonObjects, tools: JsonObjects
    ) -> tuple[JsonObjects, JsonObjects]:
        # Losses are counted once, with the model request.
        return self.endpoints.attempts.admit(identity).rewritten(
            identity, messages, tools, Losses()
        )

    def backend(self, identity: Identity, model: str) -> tuple[Backend, str]:
        route = self._route(identity, model)
        return route.backend, route.upstream_model

    def policy(self, identity: Identity, model: str) -> Policy:
        return self._route(identity, model).policy

    def _route(self, identity: Identity, model: str) -> Route:
        rollout = self.endpoints.attempts.admit(identity).rollout
        return self.endpoints.router.find(identity, model, rollout)

    async def body(self, *, largest: int | None = None, advice: str = "") -> bytes:
        try:
            return await asgi.read_body(self.receive, largest=largest)
        except asgi.TooLarge as error:
            message = f"The request has more than {largest} bytes: {advice}"
            raise Problem(413, "too_large", message) from error


async def _answer_route(route: GatewayRoute, request: ReceivedRequest, send: asgi.Send) -> None:
    """Answer a request with a plugin's route.

    Raises:
        Problem: the route refused the request.
    """
    try:
        answer = await route.serve(request)
    except asgi.ClientLeft:
        return
    head = ((b"content-type", answer.content_type.encode()),)
    await asgi.respond(send, answer.status, answer.body, headers=head)

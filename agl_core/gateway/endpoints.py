"""What the gateway answers: model calls, model lists, traces and metrics, behind the agents' key."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from agl_core.gateway.attempts import Attempts, OpenAttempt
from agl_core.gateway.counting import TokenCounting
from agl_core.gateway.dialects.chat import ChatRequest
from agl_core.gateway.dialects.responses import ResponsesRequest
from agl_core.gateway.metrics import CONTENT_TYPE
from agl_core.gateway.proxy import Proxy, answer
from agl_core.gateway.recording import Recording
from agl_core.gateway.responses import ResponsesAnswer
from agl_core.gateway.rewards import RewardIngest
from agl_core.gateway.routing import Identity, Route, Router, Target, identify, parse_path
from agl_core.gateway.traces import TraceIngest
from agl_core.serving import asgi
from agl_core.serving.counting import PATH
from agl_core.serving.headers import passed_on
from agl_core.serving.problems import Problem
from agl_core.serving.rpc import PREFIX
from agl_core.types import Losses

_CHAT: Final = "/chat/completions"
_RESPONSES: Final = "/responses"
_CONTROL: Final = PREFIX.encode()


@dataclass(eq=False, slots=True, kw_only=True)
class Endpoints:
    """The ASGI application in front of a gateway's parts."""

    api_key: str
    """Bearer token of the agents."""
    router: Router
    attempts: Attempts
    recording: Recording
    proxy: Proxy
    traces: TraceIngest
    rewards: RewardIngest
    losses: Losses
    operator_key: str = ""
    """Opens the metrics too."""
    control: asgi.App | None = None
    """Methods below `PREFIX`, behind a key of their own."""
    counting: TokenCounting = field(init=False)

    def __post_init__(self) -> None:
        self.counting = TokenCounting(self.router, self.attempts)

    async def __call__(self, scope: dict[str, Any], receive: asgi.Receive, send: asgi.Send) -> None:
        try:
            await self._dispatch(scope, receive, send)
        except Problem as problem:
            await answer(send, problem)

    async def _dispatch(
        self, scope: dict[str, Any], receive: asgi.Receive, send: asgi.Send
    ) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        raw_path: bytes = scope["raw_path"]
        if raw_path == b"/health":
            await asgi.respond(send, 200, b'{"status":"ok"}')
            return
        if self.control is not None and raw_path.startswith(_CONTROL):
            await self.control(scope, receive, send)
            return
        method: str = scope["method"]
        metrics = raw_path == b"/metrics" and method == "GET"
        self._authorise(headers, also=self.operator_key if metrics else "")
        target = parse_path(raw_path)
        if target is not None and target.path in (_CHAT, _RESPONSES) and method == "POST":
            await self._generate(target, headers, receive, send)
        elif target is not None and target.path == PATH and method == "POST":
            await self.counting.serve(target, headers, receive, send)
        elif target is not None and target.path == "/models" and method == "GET":
            await asgi.respond(send, 200, self._models())
        elif target is not None and target.path == "/traces" and method == "POST":
            await self.traces.serve(target, headers, receive, send)
        elif target is not None and target.path == "/rewards" and method == "POST":
            await self.rewards.serve(target, headers, receive, send)
        elif metrics:
            await asgi.respond(
                send, 200, self._metrics(), headers=((b"content-type", CONTENT_TYPE),)
            )
        else:
            path = raw_path.decode("ascii", "replace")
            message = (
                f"The gateway serves no {method} {path}: use POST .../v1{_CHAT} or {_RESPONSES}"
            )
            raise Problem(404, "not_found", message)

    def _authorise(self, headers: list[tuple[bytes, bytes]], *, also: str) -> None:
        given = next((value for name, value in headers if name == b"authorization"), b"")
        if not (_opens(self.api_key, given) or (also and _opens(also, given))):
            message = "Wrong API key: send 'Authorization: Bearer' with the api_key of this run"
            raise Problem(401, "invalid_api_key", message)

    def _metrics(self) -> bytes:
        gauges = {
            "agl_gateway_in_flight": ("Requests under way.", len(self.proxy.calls)),
            "agl_gateway_open_attempts": (
                "Attempts not sealed yet.",
                sum(1 for _ in self.attempts),
            ),
        }
        return self.recording.metrics.render(gauges=gauges, losses=self.losses.counts)

    def _models(self) -> bytes:
        rows = [
            {"id": name, "object": "model", "created": 0, "owned_by": "agl"}
            for name in self.router.policies
        ]
        return msgspec.json.encode({"object": "list", "data": rows})

    async def _generate(
        self,
        target: Target,
        headers: list[tuple[bytes, bytes]],
        receive: asgi.Receive,
        send: asgi.Send,
    ) -> None:
        identity = identify(target, headers)
        attempt = self._admit(identity)
        try:
            body = await asgi.read_body(receive)
            # Reading takes time, in which the attempt may have been sealed.
            self._admit(identity)
            if target.path == _RESPONSES:
                asked = ResponsesRequest(body)
                body, send = asked.chat, ResponsesAnswer(asked, send)
            request, route = self._accept(identity, attempt, body)
        except asgi.ClientLeft:
            problem = Problem(499, "client_closed", "The client left before its request was whole")
            self._refused(identity, attempt, problem)
            return
        except Problem as problem:
            self._refused(identity, attempt, problem)
            raise
        call = attempt.begin(identity, request, passed_on(headers))
        await self.proxy.serve(call, route, receive, send)

    def _admit(self, identity: Identity) -> OpenAttempt:
        try:
            return self.attempts.admit(identity)
        except Problem:
            self.losses.add("late_calls")
            raise

    def _accept(
        self, identity: Identity, attempt: OpenAttempt, body: bytes
    ) -> tuple[ChatRequest, Route]:
        if attempt.seconds_left() <= 0:
            message = f"The deadline of attempt {identity.attempt_id!r} has passed"
            raise Problem(504, "deadline_exceeded", message)
        attempt.check_alias(identity)
        request = ChatRequest(body)
        return request, self.router.find(identity.known_as, request.model)

    def _refused(self, identity: Identity, attempt: OpenAttempt, problem: Problem) -> None:
        """Record it, so that the client's span of the call finds its counterpart."""
        if not attempt.sealed:
            self.recording.refuse(attempt, identity, problem)


def _opens(key: str, given: bytes) -> bool:
    return hmac.compare_digest(given, f"Bearer {key}".encode())

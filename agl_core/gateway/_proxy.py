"""Run one admitted request until it is answered or aborted (client, deadline, drain or seal)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

from agl_core import waits
from agl_core.errors import EngineError
from agl_core.gateway._attempts import Abort, ProxiedCall
from agl_core.gateway._capture import ReceivedAnswer
from agl_core.gateway._exchange import Exchange
from agl_core.gateway._recording import Recording
from agl_core.gateway._routing import Route, Router
from agl_core.gateway._stream import render
from agl_core.interfaces import Problem
from agl_core.serving import asgi
from agl_core.types import Losses
from agl_core.types.rollout import RESERVED_PREFIX

_log = logging.getLogger(__name__)

_ANSWERS: Final[dict[Abort, tuple[int, str, str]]] = {
    "sealed": (410, "attempt_sealed", "The attempt ended while this call was running"),
    "deadline": (504, "deadline_exceeded", "The attempt's deadline passed during this call"),
    "stopped": (503, "gateway_stopped", "The gateway stopped"),
    "drained": (503, "policy_updated", "The policy was updated during this answer"),
}
"""Status, code and message for a client that is still connected."""


class Proxy:
    """Runs the exchanges; can hold new calls and wait for running exchanges."""

    def __init__(
        self, router: Router, recording: Recording, *, losses: Losses, deterministic: bool
    ) -> None:
        self._router = router
        self._recording = recording
        self._losses = losses
        self.deterministic = deterministic
        """Seed the calls of frozen policies too."""
        self._admitting = asyncio.Event()
        self._admitting.set()
        self._calls: set[ProxiedCall] = set()

    @property
    def calls(self) -> Collection[ProxiedCall]:
        """Requests in progress, including held ones."""
        return self._calls

    def pause(self) -> None:
        self._admitting.clear()

    def resume(self) -> None:
        self._admitting.set()

    async def drain(self, *, timeout_s: float) -> int:
        """Wait for running exchanges; abort those that exceed `timeout_s`, return how many.

        An aborted call whose client has received nothing runs again after `resume`.
        """
        running = {call.exchange_over(): call for call in self._calls if call.exchanging}
        if not running:
            return 0
        _, late = await asyncio.wait(running, timeout=timeout_s)
        for over in late:
            running[over].stop("drained")
        if late:
            await asyncio.wait(late)
        return len(late)

    async def serve(
        self, call: ProxiedCall, route: Route, scope: asgi.AsgiScope, send: asgi.Send
    ) -> None:
        """Answer and record a request whose body has been read."""
        exchange = self._exchange(call, route)
        stays = asgi.on_client_left(scope, partial(call.stop, "client"))
        self._calls.add(call)
        try:
            while not await self._attend(call, exchange, send):
                self._losses.add("restarted_calls")
                call.abort = ""
                exchange = self._exchange(call, exchange.route)
        finally:
            stays()
            self._calls.discard(call)
            if exchange.recorded is not None and exchange.complete:
                self._losses.add("replayed_calls")
            elif exchange.replaces_seed:
                self._losses.add("client_seeds_replaced")
            self._recording.keep(call, exchange)

    def _exchange(self, call: ProxiedCall, route: Route) -> Exchange:
        identity = call.identity
        trainable = route.policy.trainable
        reserved = identity.agent.startswith(RESERVED_PREFIX)
        call.policy = route.policy.name
        call.trainable = trainable and identity.trainable and not reserved
        return Exchange(
            call,
            route,
            capture=call.trainable,
            seeded=trainable or self.deterministic,
            answer=ReceivedAnswer(call.request.choices),
        )

    async def _attend(self, call: ProxiedCall, exchange: Exchange, send: asgi.Send) -> bool:
        """Run an exchange to its end; return False if it has to run again."""
        try:
            await self._run(call, exchange, send)
        except asyncio.CancelledError:
            if not call.abort:  # the server cancels this task
                call.abort = "stopped"
                raise
            if call.abort == "drained" and not call.forwarded:
                return False
            if call.abort != "client" and (exchange.streamed or not call.forwarded):
                await self._send_error(call, send)
        except Problem as problem:
            await _send_final(send_problem(send, problem))
        except EngineError as error:
            problem = Problem(502, "engine_error", str(error), retry=True)
            await _send_final(_send_stream_error(send, problem))
        except Exception as error:  # noqa: BLE001  the client gets an answer whatever fails
            _log.exception("Could not answer call %s", call.id)
            exchange.error = f"the gateway failed ({type(error).__name__}: {error})"
            problem = Problem(502, "gateway_error", f"The gateway failed: {error}", retry=True)
            await _send_final(
                (_send_stream_error if call.forwarded else send_problem)(send, problem)
            )
        return True

    async def _run(self, call: ProxiedCall, exchange: Exchange, send: asgi.Send) -> None:
        call.begin()
        try:
            await self._recording.wait_for_space()
            await self._admitting.wait()
            self._renew(exchange)
            call.rewrite(self._losses)
            if call.attempt.resumable:
                _remember(exchange)
            call.exchanging = True
            await exchange.run(send)
        finally:
            call.finish()

    def _renew(self, exchange: Exchange) -> None:
        """Use the policy's current route, which may have changed while the call waited.

        Raises:
            Problem: the policy was removed meanwhile.
        """
        name = exchange.route.policy.name
        route = self._router.policies.get(name)
        if route is None:
            message = f"Policy {name!r} is no longer served: its trainer has ended"
            problem = Problem(503, "policy_gone", message)
            exchange.status, exchange.error = problem.status, f"{problem.code}: {message}"
            raise problem
        exchange.route = route

    async def _send_error(self, call: ProxiedCall, send: asgi.Send) -> None:
        problem = Problem(*_ANSWERS[call.abort])
        await _send_final((_send_stream_error if call.forwarded else send_problem)(send, problem))


def _remember(exchange: Exchange) -> None:
    """Store the request's digest, and use the recorded answer if an earlier attempt has one."""
    call, route = exchange.call, exchange.route
    exchange.digest = call.request.whole_digest()
    replay = call.attempt.replay
    if replay is None:
        return
    exchange.recorded = replay.take(
        call.id,
        agent=call.identity.agent,
        # Records do not hold the texts of single tokens.
        digest="" if call.request.wants.logprobs else exchange.digest,
        policy=route.policy.name,
        capture=exchange.capture,
    )
    if exchange.recorded is not None:
        exchange.route = exchange.recorded.route(route)


async def _send_final(sending: Coroutine[Any, Any, None]) -> None:
    """Send the last message with a time limit: sealing waits for it, and a client may not read."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(sending, waits.LAST_ANSWER_S)


async def send_problem(send: asgi.Send, problem: Problem) -> None:
    """Send a problem as the whole answer."""
    retry = b"true" if problem.retry else b"false"
    headers = [*asgi.JSON, (b"x-should-retry", retry), *asgi.answered({}, problem.headers)]
    await asgi.respond(send, problem.status, problem.body(), headers=headers)


async def _send_stream_error(send: asgi.Send, problem: Problem) -> None:
    """Send an error event, on which OpenAI's clients raise.

    The HTTP answer is left unfinished, so the server closes the connection: a client that does not
    know the event does not mistake the partial answer for a whole one.
    """
    event = render(problem.body())
    await send({"type": "http.response.body", "body": event, "more_body": True})

"""Model requests of an attempt to another address than the gateway's.

A client created before the run, such as ``llm = ChatOpenAI()`` at import, has its own address and
key. The agent of the current scope decides how its requests are handled:

- a trained agent: the request is rerouted to the gateway, or refused if the gateway does not serve
  its dialect or agl-core cannot reroute its HTTP library;
- another agent, or none: the request is sent unchanged and counted by agent and address, or refused
  with ``capture.elsewhere = "refuse"``.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final
from urllib.parse import urlsplit

from agl_core import semconv
from agl_core.errors import CaptureError
from agl_core.tracing._calls import call_scope
from agl_core.tracing._context import AttemptContext, strays_here
from agl_core.types import Scope

SENT: Final = "sent_elsewhere"
REFUSED: Final = "refused_elsewhere"
_SERVED: Final = ("/chat/completions", "/responses")
"""Endings of the paths that the gateway serves."""
_MODELS: Final = ("/chat/completions", "/completions", "/responses", "/messages")
_KEYS: Final = ("api-key", "x-api-key", "cookie", "proxy-authorization")
"""Headers with secrets for the program's address; they are removed from rerouted requests."""

_COUNTED: ContextVar[bool] = ContextVar("agl_counted", default=False)


def asks_model(method: str, path: str) -> bool:
    """Return whether a request generates text: a POST to one of the paths of model servers.

    Args:
        method: In upper case.
        path: Without query.
    """
    return method == "POST" and path.endswith(_MODELS)


def reroutes(context: AttemptContext, scope: Scope | None, url: str, *, library: str = "") -> bool:
    """Return whether a model request to another address is rerouted to the gateway.

    A request that is not rerouted is counted.

    Args:
        context: The attempt that sends the request.
        scope: The current scope.
        url: The request's address.
        library: The HTTP library that sends it; empty if its requests can be rerouted.

    Raises:
        CaptureError: the request must not be sent.
    """
    parts = urlsplit(url)
    agent = scope.agent if scope is not None else None
    known_as = (context.aliases.at_call(agent) or agent) if agent else None
    if (scope is None or scope.trainable) and context.rollout.trains(known_as):
        served = parts.path.endswith(_SERVED)
        if served and not library:
            return True
        why = (
            f"{library} sends it, whose requests agl-core cannot reroute"
            if served
            else "the gateway does not serve this dialect"
        )
        _count(REFUSED, context, scope, url)
        raise CaptureError(
            f"Agent {agent!r} is trained, but its request to {_shown(url)} would not reach the "
            f"gateway: {why}. Nothing was sent. Ask for chat completions or Responses with a "
            f"client over httpx, as the openai package is, or put a request that is not to be "
            f"trained into agl.agent_scope(name, trainable=False)"
        )
    if not context.rollout.may_send_to(parts.hostname or ""):
        _count(REFUSED, context, scope, url)
        raise CaptureError(
            f"A model request of {_named(agent)} to {_shown(url)} was refused by capture.elsewhere "
            f"= 'refuse'. Nothing was sent. Add {parts.hostname!r} to capture.allow_hosts, or let "
            f"the client use agl.current().llm"
        )
    _count(SENT, context, scope, url)
    return False


def stray(url: str, origin: str) -> None:
    """Count a model request from code without an attempt, if this process runs attempts."""
    strays = strays_here()
    if strays is not None and origin not in strays.origins:
        strays.count(cause(SENT, None, url))


def counts_already() -> bool:
    """Return whether this code runs inside `counted`."""
    return _COUNTED.get()


@contextmanager
def counted() -> Generator[None, None, None]:
    """Suppress counting inside, as a client may send a counted request over another library."""
    before = _COUNTED.get()
    _COUNTED.set(True)
    try:
        yield
    finally:
        _COUNTED.set(before)


def cause(what: str, agent: str | None, url: str) -> str:
    """Return the cause of a loss, from `SENT` or `REFUSED`, the agent and the address."""
    speaker = f"_by_{agent}" if agent else ""
    return f"{what}{speaker}_to_{urlsplit(url).netloc.rpartition('@')[2]}"


def _count(what: str, context: AttemptContext, scope: Scope | None, url: str) -> None:
    context.recorder.lose(cause(what, scope.agent if scope is not None else None, url))
    call = call_scope(scope)
    if call is not None:
        context.recorder.count(call.span_id, semconv.AGL_ELSEWHERE)


def readdress(request: Any, context: AttemptContext) -> None:
    """Change address and key of an httpx or httpx2 request to the gateway's.

    The path below ``/v1`` stays; query, cookies and keys of other services are removed.
    """
    path = request.url.path
    ending = next(ending for ending in _SERVED if path.endswith(ending))
    base = urlsplit(context.llm.base_url)
    request.url = type(request.url)(f"{base.scheme}://{base.netloc}/v1{ending}")
    headers = request.headers
    headers["host"] = base.netloc
    headers["authorization"] = f"Bearer {context.llm.api_key}"
    for name in _KEYS:
        if name in headers:
            del headers[name]


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _named(agent: str | None) -> str:
    return f"agent {agent!r}" if agent else "no agent"

"""Model requests of an attempt to another address than the gateway's.

A client made before the run, such as ``llm = ChatOpenAI()`` at import, holds an address and a key
of its own. What becomes of its requests depends on who speaks when they are sent:

- an agent that is trained: the request is rerouted to the gateway, or refused where that is not
  possible, because its dialect or its HTTP library is not ours;
- any other agent, or none: the request is sent as the program meant it, and counted by agent and address, or
  refused if ``capture.elsewhere`` says so.
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
"""How the paths end that the gateway serves."""
_MODELS: Final = ("/chat/completions", "/completions", "/responses", "/messages")
_KEYS: Final = ("api-key", "x-api-key", "cookie", "proxy-authorization")
"""Headers that are meant for the address the program chose."""

_COUNTED: ContextVar[bool] = ContextVar("agl_counted", default=False)


def asks_model(method: str, path: str) -> bool:
    """Whether a request generates text: a POST to one of the paths of model servers.

    Args:
        method: In upper case.
        path: Without query.
    """
    return method == "POST" and path.endswith(_MODELS)


def reroutes(context: AttemptContext, scope: Scope | None, url: str, *, library: str = "") -> bool:
    """Decide about one model request that is not on its way to the gateway, and count it.

    Args:
        context: The attempt that sends it.
        scope: Who speaks.
        url: Where the program sends it.
        library: The HTTP library that sends it; empty where its requests can be rerouted.

    Returns:
        True: it goes to the gateway instead; False: it goes where the program sends it.

    Raises:
        CaptureError: it must not be sent.
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
    """Count a model request from where no attempt is known, while attempts are run here."""
    strays = strays_here()
    if strays is not None and origin not in strays.origins:
        strays.count(cause(SENT, None, url))


def counts_already() -> bool:
    """Whether a request that has been counted is under way here, over a library below its own."""
    return _COUNTED.get()


@contextmanager
def counted() -> Generator[None, None, None]:
    """Count nothing inside: a client may send over another library."""
    before = _COUNTED.get()
    _COUNTED.set(True)
    try:
        yield
    finally:
        _COUNTED.set(before)


def cause(what: str, agent: str | None, url: str) -> str:
    """Name of a loss: what became of the request, whose it was, and its address."""
    speaker = f"_by_{agent}" if agent else ""
    return f"{what}{speaker}_to_{urlsplit(url).netloc.rpartition('@')[2]}"


def _count(what: str, context: AttemptContext, scope: Scope | None, url: str) -> None:
    context.recorder.lose(cause(what, scope.agent if scope is not None else None, url))
    call = call_scope(scope)
    if call is not None:
        context.recorder.count(call.span_id, semconv.AGL_ELSEWHERE)


def readdress(request: Any, context: AttemptContext) -> None:
    """Give a request of httpx or httpx2 the gateway's address and the attempt's key.

    The path below ``/v1`` stays; query, cookies and keys of other services go.
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

"""HTTP routes, dialects and changes of requests that plugins add to the gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from agl_core.interfaces._serving import Backend
from agl_core.interfaces._store import Store
from agl_core.text import replaced_json
from agl_core.types import Losses, Policy, Rollout, Span

T = TypeVar("T")

Access = Literal["agents", "both", "operators"]
"""The keys that open a route.

``agents``: keys of attempts. ``both``: also the operators' key, for every attempt. ``operators``:
only the operators' key; the route concerns the whole gateway, so its path is not below ``/v1``.
"""


class Problem(Exception):  # noqa: N818  an answer, not a failure of the server
    """An HTTP error response in the form that OpenAI's clients read."""

    def __init__(
        self, status: int, code: str, message: str, *, retry: bool = False, param: str | None = None
    ) -> None:
        """Set the fields of the response.

        Args:
            status: HTTP status.
            code: Machine-readable cause, ``error.code`` in the body.
            message: What failed, the value, and the fix.
            retry: Whether clients that retry by status should do so.
            param: The field of the request that is wrong.
        """
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry = retry
        self.param = param
        self.headers: Mapping[str, str] = {}
        """Further headers of the answer; names are in lower case."""

    def body(self) -> bytes:
        kind = "invalid_request_error" if self.status < 500 else "gateway_error"  # noqa: PLR2004
        error: dict[str, Any] = {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error})


def read_body(body: bytes, read: Callable[[bytes], T], *, what: str) -> T:
    """Return the result of `read`, which may be called a second time with repaired JSON.

    Raises:
        Problem: 400; `read` raised a decoding error. The message names the expected `what`.
    """
    try:
        try:
            return read(body)
        except msgspec.DecodeError:
            return read(replaced_json(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "invalid_body", f"Request body is no {what}: {error}") from error


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt and agent of a request."""

    rollout_id: str
    attempt_id: str
    call_id: str
    """Minted by the gateway if the client sends none."""
    agent: str = ""
    """Empty if the client names no agent."""
    alias: str = ""
    """The agent's alias in this attempt; empty without one."""
    agent_run_id: str = ""
    trainable: bool = True

    @property
    def known_as(self) -> str:
        """The alias, or the agent's name without one; policies select by it."""
        return self.alias or self.agent


JsonObjects = list[dict[str, Any]]
"""The ``messages`` or the ``tools`` of a chat completion request."""


class RouteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The response of a route."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"


class RouteRequest(Protocol):
    """A request with a key that opens the route."""

    @property
    def headers(self) -> Mapping[str, str]:
        """HTTP headers; names are in lower case."""
        ...

    @property
    def named(self) -> bool:
        """Whether URL or headers name an attempt."""
        ...

    @property
    def in_flight(self) -> int:
        """Number of model requests in progress at the gateway, including held ones."""
        ...

    @property
    def open_attempts(self) -> int:
        """Number of attempts that are not sealed yet."""
        ...

    def identity(self) -> Identity:
        """Return the attempt, agent and call that the request names.

        Raises:
            Problem: 400, it names no attempt, or two; 403, its key does not open the attempt.
        """
        ...

    def admit(self, rollout_id: str, attempt_id: str) -> None:
        """Check that the key opens an attempt and that the attempt is running.

        Raises:
            Problem: 403, the key belongs to another attempt; 404 or 503, the gateway does not know
                the attempt; 410, the attempt has ended.
        """
        ...

    def rewritten(
        self, identity: Identity, messages: JsonObjects, tools: JsonObjects
    ) -> tuple[JsonObjects, JsonObjects]:
        """Return the messages and tools that the gateway sends for those of a model request.

        Raises:
            Problem: as for `admit`.
        """
        ...

    def backend(self, identity: Identity, model: str) -> tuple[Backend, str]:
        """Return the backend for an agent's calls of a model, and the backend's name of the model.

        Raises:
            Problem: no policy serves the agent.
        """
        ...

    def policy(self, identity: Identity, model: str) -> Policy:
        """Return the policy that answers an agent's calls of a model, in its current version.

        Raises:
            Problem: as for `backend`.
        """
        ...

    async def body(self, *, largest: int | None = None, advice: str = "") -> bytes:
        """Read the whole body.

        Args:
            largest: Limit in bytes; None for any size.
            advice: The fix for a larger body, for the error's message.

        Raises:
            Problem: 413, the body is larger.
        """
        ...


class GatewayRoute(Protocol):
    """Handles the requests of one method and path."""

    access: Access

    async def serve(self, request: RouteRequest) -> RouteAnswer:
        """Handle one request.

        Raises:
            Problem: the error response.
        """
        ...


@runtime_checkable
class RecordObserver(Protocol):
    """A route that also observes the records of model requests."""

    def recorded(self, span: Span) -> None:
        """Observe the record of a model request that has ended; every try has one.

        It is called on the gateway's event loop while the client waits, before the record is
        written to the store. An error is logged and does not affect the request.
        """
        ...


RouteFactory = Callable[[Store, Losses], GatewayRoute]
"""Makes a route from the gateway's store and loss counter. It is registered under the method and
the path below ``/v1``, such as ``POST /traces``, or the whole path if its `Access` is
``operators``."""


Rewrite = Callable[[Identity, JsonObjects, JsonObjects, Losses], tuple[JsonObjects, JsonObjects]]
"""Returns the messages and tools to send in place of a model request's.

It returns the same objects if it changes nothing, and modifies none of them. It counts losses. An
error fails the request.
"""


class Rewriter(Protocol):
    """Changes the messages and tools of model requests, such as an agent's system prompt.

    The changes come after the dialect and the call's seed, which is that of the client's text. The
    backend, the `ModelCall`, the replay and the counting of tokens get the changed text.
    """

    async def prepare(self, rollout: Rollout) -> Rewrite | None:
        """Return the changes to the calls of a rollout; None if there are none.

        It is awaited when an attempt opens, so that no call waits for it.

        Raises:
            StoreError: the store failed.
        """
        ...


RewriterFactory = Callable[[Store], Rewriter]
"""Makes a rewriter from the gateway's store."""


class Admission(Protocol):
    """Decides which model requests the gateway accepts, such as those below a rate."""

    async def admit(self, identity: Identity, *, key: str, address: str, policy: str) -> None:
        """Return if the gateway shall accept a request of a running attempt.

        Args:
            identity: Attempt and agent of the request.
            key: The request's bearer token.
            address: The client's address; empty if the server does not know it.
            policy: Name of the policy that will answer.

        Raises:
            Problem: the answer to a refused request, which is recorded as a failed call.
        """
        ...

    async def close(self) -> None:
        """Release connections; called when the gateway stops."""
        ...


class TokenDetails(msgspec.Struct):
    """Numbers of tokens of special kinds in a prompt or an answer."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class TokenUsage(msgspec.Struct):
    """``usage`` of a chat completion."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None

    @property
    def stated(self) -> bool:
        """Whether a count is above zero: some servers end a stream with a usage of zeros."""
        return bool(self.prompt_tokens or self.completion_tokens or self.total_tokens)


class ReceivedToolCall(Protocol):
    """The received part of a tool call; every `AnswerDelta` has the same object."""

    position: int
    """Index among the answer's calls, in the order in which they began; -1 for the older
    ``function_call``."""
    id: str
    """Empty if the backend sent no id."""
    name: str
    """Empty until it is known."""
    arguments: list[str]
    """Fragments of the JSON text."""


class AnswerDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The additions of one chunk of a chat completion to the answer, or a whole answer.

    The gateway has parsed it: texts are strings, fields that no client can read are left out.
    """

    id: str = ""
    """Id of the answer."""
    reasoning: str = ""
    content: str = ""
    refusal: str = ""
    transcript: str = ""
    """Transcript of a spoken answer."""
    tool_calls: Sequence[ReceivedToolCall] = ()
    """The tool calls that this chunk extends."""
    finish_reason: str | None = None
    """Why the answer ended; None before its end."""
    usage: TokenUsage | None = None
    """None before the backend sends it."""


class DialectAnswer(Protocol):
    """Encodes one answer in a dialect.

    A streamed answer is the output of each `add`, then of `end` or `fail`. For an answer that is
    not streamed, the gateway calls `add` and `end` and sends only `document`.
    """

    def add(self, delta: AnswerDelta) -> bytes:
        """Encode a chunk as events."""
        ...

    def end(self) -> bytes:
        """Return the last events of a complete answer."""
        ...

    def fail(self, error: Mapping[str, Any]) -> bytes:
        """Return events for a broken answer, on which every client of the dialect raises.

        Args:
            error: ``message`` and, if the backend sent them, ``code``, ``type`` and ``param``.
        """
        ...

    def document(self) -> bytes:
        """Return the whole answer as JSON."""
        ...


Dialect = Callable[[bytes], tuple[bytes, DialectAnswer]]
"""Converts the body of a request: returns the equivalent chat completion request, and the encoder
of its answer in the dialect.

The gateway sends that chat completion request to the backend, with the run's changes, and the
`ModelCall` records it: messages, tools, sampling and choices in the form of chat completions, and
the number of bytes that the client received in its own dialect. Errors have the form that OpenAI's
clients read.

Raises:
    Problem: 400, the body is not a request of the dialect, or needs something that cannot be
        served; the message names the field and the fix.
"""

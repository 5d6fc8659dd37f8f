"""A backend behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import ClientOSError, ClientResponse, ClientTimeout, ServerDisconnectedError

from agl_core.clocks import monotonic
from agl_core.errors import EngineError
from agl_core.interfaces import Backend, CountAnswer, Counted
from agl_core.serving import asgi
from agl_core.text import decoded
from agl_endpoints._client import CONNECT_S, HttpClient, failures, reason, sendable
from agl_endpoints._throttle import later_s, throttle_of

_REFUSALS: Final = (400, 422)
_NOT_SERVED: Final = (404, 405, 501)
_ERROR: Final = 400


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    """Only some servers send it."""
    parent: str | None = None
    """The base model of an adapter; both have the same context length."""


class _ModelList(msgspec.Struct):
    data: list[_Model]


class Posted(NamedTuple):
    """The whole answer to `HttpBackend.post`."""

    status: int
    body: bytes


class _TimeLimit:
    """The time limit of one request, with one timer for the head and the body of the answer."""

    __slots__ = ("_cancelling", "_task", "_timer", "passed", "response")

    def __init__(self, timeout_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._pass)
        self.passed = False
        self.response: ClientResponse | None = None
        """Set when the head was received; the timer then closes it and does not cancel the task."""

    def _pass(self) -> None:
        self.passed = True
        if self.response is None:
            self._task.cancel()
        else:
            self.response.close()

    def end(self) -> None:
        self._timer.cancel()

    def alone_cancelled(self) -> bool:
        """Undo the limit's cancellation of the task; return whether it was the only one."""
        return self.passed and self._task.uncancel() <= self._cancelling


class HttpReply:
    """An answer that is being received; its connection is closed when the time limit passes."""

    def __init__(self, response: ClientResponse, base_url: str, limit: _TimeLimit) -> None:
        self._response = response
        self._base_url = base_url
        self._limit = limit
        limit.response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body in chunks as they are received.

        Raises:
            EngineError: the body ended early.
        """
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except failures() as error:
            raise EngineError(f"Answer of {self._base_url} broke off: {reason(error)}") from error

    async def close(self) -> None:
        """Close the connection unless the body was read completely."""
        self._limit.end()
        self._response.close()


class HttpBackend(Backend):
    """Sends chat completions to an endpoint, over an unlimited pool of connections.

    Where `THROTTLES` has limits for the endpoint, a request waits for its turn, and for as long as
    ``Retry-After`` of a refusal says if that is within the request's time limit.
    """

    def __init__(self, base_url: str, api_key: str = "", model: str = "") -> None:
        """Create a backend; requests open the connections.

        Args:
            base_url: Address that ends in ``/v1``.
            api_key: Bearer token; not sent if empty.
            model: The endpoint's name of the model, which the gateway sets in requests.
        """
        self.base_url = base_url.rstrip("/")
        self.api_key = api_key
        self.model = model
        self._headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        check = "Check that the server runs and that base_url is right"
        self._client = HttpClient(self.base_url, check=check)
        self._throttle = throttle_of(self.base_url)

    async def chat(self, body: bytes, *, headers: Mapping[str, str], timeout_s: float) -> HttpReply:
        """Send one request body unchanged.

        If the connection fails before an answer begins, the request is sent once more: the server
        may have closed a pooled connection.

        Raises:
            EngineError: the endpoint cannot be reached or did not answer in time.
        """
        url = self.base_url + "/chat/completions"
        # aiohttp's limit on a whole request and asyncio.timeout take several times as long.
        limit = _TimeLimit(timeout_s)
        try:
            response = await self._in_turn(url, body, {**headers, **self._headers}, timeout_s)
        except BaseException as error:
            limit.end()
            if limit.alone_cancelled() and isinstance(error, asyncio.CancelledError):
                raise self._client.failed(TimeoutError(), url, timeout_s=timeout_s) from error
            if isinstance(error, failures()):
                raise self._client.failed(error, url, timeout_s=timeout_s) from error
            raise
        return HttpReply(response, self.base_url, limit)

    async def _in_turn(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> ClientResponse:
        """Send a request when it is allowed to, and again if the endpoint asks for that.

        Raises:
            EngineError: it is not allowed to within its time limit.
        """
        throttle = self._throttle
        if throttle is None:
            return await self._post(url, body, headers)
        ends = monotonic() + timeout_s
        while True:
            await throttle.turn(body, timeout_s=ends - monotonic())
            response = await self._post(url, body, headers)
            seconds = later_s(response.status, response.headers)
            if seconds is None:
                return response
            throttle.hold(seconds)
            if monotonic() + seconds >= ends:
                return response
            response.release()

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> ClientResponse:
        request = self._client.request
        try:
            return await request("POST", url, data=sendable(body), headers=headers)
        except (ServerDisconnectedError, ClientOSError):
            return await request("POST", url, data=sendable(body), headers=headers)

    async def post(self, path: str, body: bytes, timeout_s: float) -> Posted:
        """Send a request of another kind, such as one for embeddings, and return the whole answer.

        Args:
            path: Path below the base address, such as ``/embeddings``.

        Raises:
            EngineError: the endpoint cannot be reached or did not answer in time.
        """
        return await self._whole(self.base_url + path, body, timeout_s, counts=True)

    async def _whole(
        self, url: str, body: bytes, timeout_s: float, *, counts: bool = False
    ) -> Posted:
        """Return a whole answer; `counts`: the request takes part of the endpoint's limits."""
        headers = self._headers
        try:
            async with asyncio.timeout(timeout_s):
                sent = self._in_turn(url, body, headers, timeout_s) if counts else None
                async with await (sent or self._post(url, body, headers)) as response:
                    return Posted(response.status, await response.read())
        except failures() as error:
            raise self._client.failed(error, url, timeout_s=timeout_s) from error

    async def models(self) -> list[str]:
        """Return the models in the endpoint's ``/models``; empty if it cannot be read."""
        return [row.id for row in await self._listed()]

    async def context_length(self) -> int | None:
        """Return the model's context length in ``/models``; None if it is not there."""
        rows = await self._listed()
        mine = [row for row in rows if row.id == self.model]
        found = mine or (rows if len(rows) == 1 and not self.model else [])
        if not found:
            return None
        below = [row for row in rows if row.id == found[0].parent]
        return found[0].max_model_len or (below[0].max_model_len if below else None)

    async def detokenize(self, token_ids: Sequence[int]) -> str | None:
        """Return the answer of ``/detokenize`` (not below ``/v1``); None if the server lacks it."""
        url = self.base_url.removesuffix("/v1") + "/detokenize"
        answer = await self._json("POST", url, {"model": self.model, "tokens": list(token_ids)})
        text: Any = answer.get("prompt") if isinstance(answer, dict) else None  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        return text if isinstance(text, str) else None

    async def count_tokens(self, body: bytes) -> Counted | None:
        """Return the answer of ``/tokenize`` (not below ``/v1``); None if the server lacks it.

        Raises:
            ValueError: the server refuses the messages.
            EngineError: the server does not answer, or answers with another error.
        """
        url = self.base_url.removesuffix("/v1") + "/tokenize"
        status, content = await self._whole(url, body, CONNECT_S)
        try:
            answer = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answer = decoded(content[:200])
        if status in _REFUSALS:
            raise ValueError(f"HTTP {status}: {asgi.error_text(answer)}")
        if status >= _ERROR and status not in _NOT_SERVED:
            raise EngineError(
                f"{url} did not count a prompt: HTTP {status}: {asgi.error_text(answer)}"
            )
        try:
            counted = msgspec.convert(answer, CountAnswer)
        except msgspec.ValidationError:
            return None
        return Counted(counted.count, counted.max_model_len)

    async def _listed(self) -> list[_Model]:
        listed = await self._json("GET", self.base_url + "/models", None)
        try:
            return msgspec.convert(listed, _ModelList).data
        except msgspec.ValidationError:
            return []

    async def _json(self, method: str, url: str, body: Any) -> Any:
        """Return the answer's JSON; None if the request fails or the answer is not JSON."""
        data = None if body is None else msgspec.json.encode(body)
        timeout = ClientTimeout(total=CONNECT_S)
        request: dict[str, Any] = {"data": data, "headers": self._headers, "timeout": timeout}
        try:
            async with self._client.request(method, url, allow_redirects=True, **request) as answer:
                return await answer.json(content_type=None)
        except (*failures(), EngineError, ValueError):
            return None

    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self._client.close()
        if self._throttle is not None:
            await self._throttle.close()

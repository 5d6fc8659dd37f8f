"""A backend behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from aiohttp import ClientOSError, ClientResponse, ClientTimeout, ServerDisconnectedError

from agl_core.errors import EngineError
from agl_core.interfaces import Backend, Counted
from agl_core.serving.answering import CountAnswer
from agl_core.serving.client import CONNECT_S, HttpClient, error_text, failures, reason, sendable
from agl_core.text import decoded

_REFUSALS: Final = (400, 422)
_NOT_SERVED: Final = (404, 405, 501)
_ERROR: Final = 400


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    """Some servers state it."""
    parent: str | None = None
    """Of an adapter: the model below it, whose length is its own."""


class _ModelList(msgspec.Struct):
    data: list[_Model]


class _TimeLimit:
    """The time for one request, by one timer: ends the wait for the head, later the body."""

    __slots__ = ("_cancelling", "_task", "_timer", "passed", "response")

    def __init__(self, timeout_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._pass)
        self.passed = False
        self.response: ClientResponse | None = None
        """Closed instead of the task's cancellation, once its head is there."""

    def _pass(self) -> None:
        self.passed = True
        if self.response is None:
            self._task.cancel()
        else:
            self.response.close()

    def end(self) -> None:
        self._timer.cancel()

    def alone_cancelled(self) -> bool:
        """Take back the cancellation of the task; whether the limit alone asked for one."""
        return self.passed and self._task.uncancel() <= self._cancelling


class HttpReply:
    """An answer as it arrives; its connection is closed when the time for it is over."""

    def __init__(self, response: ClientResponse, base_url: str, limit: _TimeLimit) -> None:
        self._response = response
        self._base_url = base_url
        self._limit = limit
        limit.response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def body(self) -> AsyncIterator[bytes]:
        """The body in the pieces in which it arrives.

        Raises:
            EngineError: it broke off.
        """
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except failures() as error:
            raise EngineError(f"Answer of {self._base_url} broke off: {reason(error)}") from error

    async def close(self) -> None:
        """Close the connection unless the body was read to its end."""
        self._limit.end()
        self._response.close()


class HttpBackend(Backend):
    """Sends chat completions to an endpoint over pooled connections, as many as are needed."""

    def __init__(self, base_url: str, api_key: str = "", model: str = "") -> None:
        """Describe the endpoint; connections are opened by the first request.

        Args:
            base_url: Ends in ``/v1``.
            api_key: Bearer token; none is sent when empty.
            model: The endpoint's name for the weights, which the gateway puts into requests.
        """
        self.base_url = base_url.rstrip("/")
        self.api_key = api_key
        self.model = model
        self._headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        check = "Check that the server runs and that base_url is right"
        self._client = HttpClient(self.base_url, check=check)

    async def chat(self, body: bytes, *, headers: Mapping[str, str], timeout_s: float) -> HttpReply:
        """Send one request body as it stands.

        A connection that is dead before an answer has begun is replaced once: a pooled one may have
        been dropped by the server meanwhile.

        Raises:
            EngineError: the endpoint cannot be reached or did not answer in time.
        """
        url = self.base_url + "/chat/completions"
        # aiohttp's limit on a whole request and asyncio.timeout take several times as long.
        limit = _TimeLimit(timeout_s)
        try:
            response = await self._post(url, body, {**headers, **self._headers})
        except BaseException as error:
            limit.end()
            if limit.alone_cancelled() and isinstance(error, asyncio.CancelledError):
                raise self._client.failed(TimeoutError(), url, timeout_s=timeout_s) from error
            if isinstance(error, failures()):
                raise self._client.failed(error, url, timeout_s=timeout_s) from error
            raise
        return HttpReply(response, self.base_url, limit)

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> ClientResponse:
        request = self._client.request
        try:
            return await request("POST", url, data=sendable(body), headers=headers)
        except (ServerDisconnectedError, ClientOSError):
            return await request("POST", url, data=sendable(body), headers=headers)

    async def models(self) -> list[str]:
        """Names of the models that the endpoint's ``/models`` lists; empty where it does not."""
        return [row.id for row in await self._listed()]

    async def context_length(self) -> int | None:
        """What ``/models`` says of the model; None where it says nothing of it."""
        rows = await self._listed()
        mine = [row for row in rows if row.id == self.model]
        found = mine or (rows if len(rows) == 1 and not self.model else [])
        if not found:
            return None
        below = [row for row in rows if row.id == found[0].parent]
        return found[0].max_model_len or (below[0].max_model_len if below else None)

    async def detokenize(self, token_ids: Sequence[int]) -> str | None:
        """What ``/detokenize``, beside ``/v1``, says; None where the server has no such path."""
        url = self.base_url.removesuffix("/v1") + "/detokenize"
        answer = await self._json("POST", url, {"model": self.model, "tokens": list(token_ids)})
        text: Any = answer.get("prompt") if isinstance(answer, dict) else None  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        return text if isinstance(text, str) else None

    async def count_tokens(self, body: bytes) -> Counted | None:
        """What ``/tokenize``, beside ``/v1``, says; None where the server has no such path.

        Raises:
            ValueError: the server refuses the messages.
            EngineError: it does not answer.
        """
        url = self.base_url.removesuffix("/v1") + "/tokenize"
        try:
            async with asyncio.timeout(CONNECT_S):
                response = await self._post(url, body, self._headers)
                async with response:
                    status, content = response.status, await response.read()
        except failures() as error:
            raise self._client.failed(error, url, timeout_s=CONNECT_S) from error
        try:
            answer = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answer = decoded(content[:200])
        if status in _REFUSALS:
            raise ValueError(f"HTTP {status}: {error_text(answer)}")
        if status >= _ERROR and status not in _NOT_SERVED:
            raise EngineError(f"{url} did not count a prompt: HTTP {status}: {error_text(answer)}")
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
        """The answer's JSON; None where there is none."""
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

"""A backend behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from aiohttp import (
    ClientError,
    ClientOSError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    ServerDisconnectedError,
    TCPConnector,
)

from agl_core.errors import EngineError
from agl_core.interfaces import Backend, Counted
from agl_core.serving.bodies import sendable
from agl_core.serving.counting import CountAnswer
from agl_core.serving.problem_text import error_text
from agl_core.serving.proxies import advice, proxy_for, through
from agl_core.text import decoded

_CONNECT_S: Final = 30.0
_IDLE_S: Final = 4.0
"""Seconds an idle connection is kept: less than the five after which uvicorn, and so vLLM, drops
it."""
_REFUSALS: Final = (400, 422)
_NOT_SERVED: Final = (404, 405, 501)
_ERROR: Final = 400


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    """Servers of vLLM's kind state it."""
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
        """Take back the cancellation of the task; whether nobody else asked for one."""
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
        except (TimeoutError, ClientError, OSError) as error:
            raise EngineError(
                f"Answer of {self._base_url} broke off: {error or type(error).__name__}"
            ) from error

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
        self._opened: ClientSession | None = None
        self._proxy: str | None = None

    async def chat(self, body: bytes, *, headers: Mapping[str, str], timeout_s: float) -> HttpReply:
        """Send one request body as it stands.

        A connection that is dead before an answer has begun is replaced once: a pooled one may have
        been dropped by the server meanwhile.

        Raises:
            EngineError: the endpoint cannot be reached or did not answer in time.
        """
        url = self.base_url + "/chat/completions"
        # The session's own limit and asyncio.timeout are several times as dear.
        limit = _TimeLimit(timeout_s)
        try:
            response = await self._post(url, body, {**headers, **self._headers})
        except BaseException as error:
            limit.end()
            failure = self._failure(url, error, limit, timeout_s)
            if failure is None:
                raise
            raise failure from error
        return HttpReply(response, self.base_url, limit)

    def _failure(
        self, url: str, error: BaseException, limit: _TimeLimit, timeout_s: float
    ) -> EngineError | None:
        """What `error` says of the endpoint; None where it says nothing of it."""
        late = limit.alone_cancelled() and isinstance(error, asyncio.CancelledError)
        where = f"{url}{through(self._proxy)}"
        if late or isinstance(error, TimeoutError):
            return EngineError(f"{where} did not answer within {timeout_s:.1f} s")
        if not isinstance(error, (ClientError, OSError)):
            return None
        check = advice(self._proxy, "Check that the server runs and that base_url is right")
        return EngineError(f"Cannot reach {where}: {error or type(error).__name__}. {check}")

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> ClientResponse:
        post = self._session().post
        given: dict[str, Any] = {"headers": headers, "allow_redirects": False, "proxy": self._proxy}
        try:
            return await post(url, data=sendable(body), **given)
        except (ServerDisconnectedError, ClientOSError):
            return await post(url, data=sendable(body), **given)

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
        """What vLLM's ``/detokenize`` says, which lies beside ``/v1``; None where there is none."""
        url = self.base_url.removesuffix("/v1") + "/detokenize"
        answer = await self._json("POST", url, {"model": self.model, "tokens": list(token_ids)})
        text: Any = answer.get("prompt") if isinstance(answer, dict) else None  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        return text if isinstance(text, str) else None

    async def count_tokens(self, body: bytes) -> Counted | None:
        """What vLLM's ``/tokenize`` says, which lies beside ``/v1``; None where there is none.

        Raises:
            ValueError: the server refuses the messages.
            EngineError: it does not answer.
        """
        url = self.base_url.removesuffix("/v1") + "/tokenize"
        try:
            async with asyncio.timeout(_CONNECT_S):
                response = await self._post(url, body, self._headers)
                async with response:
                    status, content = response.status, await response.read()
        except (TimeoutError, ClientError, OSError) as error:
            raise EngineError(
                f"{url} did not count a prompt: {error or type(error).__name__}"
            ) from error
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
        timeout = ClientTimeout(total=_CONNECT_S)
        request: dict[str, Any] = {"data": data, "headers": self._headers, "timeout": timeout}
        try:
            session = self._session()
            async with session.request(method, url, proxy=self._proxy, **request) as answer:
                return await answer.json(content_type=None)
        except (TimeoutError, ClientError, EngineError, OSError, ValueError):
            return None

    async def close(self) -> None:
        """Close all connections; idempotent."""
        session, self._opened = self._opened, None
        if session is not None:
            await session.close()

    def _session(self) -> ClientSession:
        if self._opened is None:
            self._proxy = proxy_for(self.base_url)
            connector = TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=_IDLE_S)
            timeout = ClientTimeout(total=None, sock_connect=_CONNECT_S)
            self._opened = ClientSession(
                connector=connector,
                timeout=timeout,
                read_bufsize=2**20,
                cookie_jar=DummyCookieJar(),  # an engine's cookies are no agent's
            )
        return self._opened

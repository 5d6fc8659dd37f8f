"""Post attempts to an OTLP/HTTP collector."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from agl_endpoints import HttpClient, failures, is_address, reason
from agl_stores import attempt_records, rollout_pages
from aiohttp import ClientTimeout

from agl_core.errors import ConfigError, StoreError
from agl_core.interfaces import Sent, Store
from agl_core.text import decoded
from agl_core.types import RolloutQuery
from agl_otlp._encode import encode_attempt, request

_PATH: Final = "/v1/traces"
_HEADERS: Final = {"Content-Type": "application/json"}
_PAGE: Final = 50
_SPANS_PER_REQUEST: Final = 500
_TIMEOUT_S: Final = 30.0
_AGAIN: Final = frozenset({429, 502, 503, 504})
"""Statuses after which OTLP asks a client to retry."""
_PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0)
_LONGEST_PAUSE_S: Final = 30.0

Pause = Callable[[float], Awaitable[None]]


class _Partial(msgspec.Struct, rename="camel"):
    rejected_spans: int | None = None
    error_message: str | None = None


class _Answer(msgspec.Struct, rename="camel"):
    """A collector's answer to an accepted request."""

    partial_success: _Partial | None = None


async def send_attempts(
    store: Store,
    endpoint: str,
    *,
    query: RolloutQuery | None = None,
    headers: Mapping[str, str] | None = None,
    content: bool = False,
    pause: Pause = asyncio.sleep,
) -> Sent:
    """Send every ended attempt as a trace.

    Args:
        store: Open, at least for reading.
        endpoint: Address of the collector; ``/v1/traces`` is added if it has no path.
        query: Selects rollouts; all when None.
        headers: For the collector, such as its key.
        content: Also send prompts and answers.
        pause: Waits between tries, in seconds.

    Raises:
        ConfigError: the address is not valid.
        StoreError: the collector is not reachable, or refuses.
    """
    url = traces_url(endpoint)
    sent = Sent()
    batch = _Batch(url, headers or {}, sent, pause)
    try:
        async for rollouts in rollout_pages(store, query, size=_PAGE):
            async for record in attempt_records(store, rollouts):
                if not record.attempt.status.final:
                    sent.running += 1
                    continue
                await batch.add(encode_attempt(record, content=content))
        await batch.flush()
    finally:
        await batch.close()
    return sent


def traces_url(endpoint: str) -> str:
    """Return the address to post to.

    Raises:
        ConfigError: it is not an http address.
    """
    if not is_address(endpoint):
        raise ConfigError(
            f"Collector {endpoint!r} is not an address: write one such as http://127.0.0.1:4318"
        )
    bare = urlsplit(endpoint).path in ("", "/")
    return endpoint.rstrip("/") + _PATH if bare else endpoint


class _Batch:
    """Attempts to send in one request."""

    def __init__(self, url: str, headers: Mapping[str, str], sent: Sent, pause: Pause) -> None:
        check = "check its address and headers, and send again"
        self._client = HttpClient(url, error=StoreError, check=check)
        self._url = url
        self._headers = {**headers, **_HEADERS}
        self._sent = sent
        self._pause = pause
        self._blocks: list[dict[str, Any]] = []
        self._spans = 0

    async def add(self, block: dict[str, Any]) -> None:
        spans = len(block["scopeSpans"][0]["spans"])
        if self._blocks and self._spans + spans > _SPANS_PER_REQUEST:
            await self.flush()
        self._blocks.append(block)
        self._spans += spans

    async def flush(self) -> None:
        if not self._blocks:
            return
        self._take(await self._post(request(self._blocks)))
        self._sent.attempts += len(self._blocks)
        self._sent.spans += self._spans
        self._blocks, self._spans = [], 0

    async def close(self) -> None:
        await self._client.close()

    async def _post(self, body: bytes) -> bytes:
        """Post a request and return the collector's answer.

        Raises:
            StoreError: there is no answer, or the collector refused the request.
        """
        problem = ""
        given: dict[str, Any] = {
            "headers": self._headers,
            "timeout": ClientTimeout(total=_TIMEOUT_S),
            "allow_redirects": True,
        }
        for wait_s in (*_PAUSES_S, None):
            asked_s, status = "", 0
            try:
                async with self._client.request("POST", self._url, data=body, **given) as reply:
                    answer = await reply.read()
                    if reply.ok:
                        return answer
                    status, asked_s = reply.status, reply.headers.get("Retry-After", "")
                    problem = f"HTTP {status}: {decoded(answer[:500])}"
            except failures() as error:
                problem = f"{type(error).__name__}: {reason(error)}"
            if wait_s is None or (status and status not in _AGAIN):
                break
            asked = float(asked_s) if asked_s.isdigit() else 0.0
            await self._pause(min(max(wait_s, asked), _LONGEST_PAUSE_S))
        raise StoreError(
            f"The collector at {self._client.shown(self._url)} did not accept the spans "
            f"({problem}); {self._sent.attempts} attempts were sent before: {self._client.advice()}"
        )

    def _take(self, answer: bytes) -> None:
        """Count the spans that a partial success rejected."""
        try:
            partial = msgspec.json.decode(answer, type=_Answer, strict=False).partial_success
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if partial is None:
            return
        self._sent.rejected += partial.rejected_spans or 0
        if partial.error_message:
            self._sent.reasons.append(partial.error_message)

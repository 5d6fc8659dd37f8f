"""Spans from agents in any language: OTLP over HTTP for attempts that the gateway has open."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from agl_core.errors import StoreError
from agl_core.interfaces import Access, Problem, RouteAnswer, RouteRequest, Store
from agl_core.types import Losses, Span
from agl_otlp import _protobuf as protobuf
from agl_otlp._decode import Decoded, Sender, decode
from agl_otlp._values import Malformed

_log = logging.getLogger(__name__)

_JSON: Final = "application/json"
_PROTOBUF: Final = "application/x-protobuf"
_LARGEST: Final = 64 * 1024 * 1024
"""Most bytes of a request, unpacked."""
_LARGE: Final = 64 * 1024
"""Bodies from this size, in bytes, are read in a thread, so the event loop is not blocked."""
_MOST_REASONS: Final = 5
_ADVICE: Final = "export fewer spans at a time"
_GZIP_WINDOW: Final = 31
"""zlib's parameter for gzip with the largest window."""


class TraceIngest:
    """A route for export requests: it stores each span or states why it is refused."""

    access: Access = "both"

    def __init__(self, store: Store, losses: Losses) -> None:
        self._store = store
        self._losses = losses

    async def serve(self, request: RouteRequest) -> RouteAnswer:
        """Answer one request.

        Raises:
            Problem: the request cannot be read, or the store is not reachable.
        """
        given = request.headers
        kind = given.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (_JSON, _PROTOBUF):
            message = f"OTLP comes as {_JSON} or {_PROTOBUF}, not as {kind!r}"
            raise Problem(415, "unsupported_media_type", message)
        sender = _sender(request)
        body = await request.body(largest=_LARGEST, advice=_ADVICE)
        packing = given.get("content-encoding", "")
        if packing or len(body) > _LARGE:
            found = await asyncio.to_thread(_decoded, body, packing, kind, sender)
        else:
            found = _decoded(body, packing, kind, sender)
        outcome = await self._store_spans(found, request)
        self._losses.add("truncated_value", found.truncated)
        if outcome.refused:
            self._losses.add("otlp_refused", outcome.refused)
            _log.warning("Refused %d OTLP spans: %s", outcome.refused, outcome.reason)
        if kind == _PROTOBUF:
            answer = protobuf.answer(refused=outcome.refused, reason=outcome.reason)
            return RouteAnswer(body=answer, content_type=_PROTOBUF)
        return RouteAnswer(body=msgspec.json.encode(outcome.answer()))

    async def _store_spans(self, found: Decoded, request: RouteRequest) -> _Outcome:
        outcome = _Outcome(refused=len(found.refused), reasons=list(found.refused))
        accepted: list[Span] = []
        for spans, sources in _by_attempt(found):
            try:
                request.admit(spans[0].rollout_id, spans[0].attempt_id)
            except Problem as problem:
                outcome.refuse(len(sources), problem.message)
                continue
            accepted += spans
        if not accepted:
            return outcome
        try:
            ingest = await self._store.add_spans(accepted)
        except StoreError as error:
            message = f"The store did not take the spans: {error}"
            raise Problem(503, "store_unavailable", message, retry=True) from error
        if ingest.late:
            outcome.refuse(ingest.late, "their attempt ended before they arrived")
        return outcome


@dataclass(slots=True)
class _Outcome:
    """Counts of a request's stored and refused spans."""

    refused: int = 0
    reasons: list[str] = field(default_factory=list[str])

    def refuse(self, count: int, reason: str) -> None:
        self.refused += count
        self.reasons.append(reason)

    @property
    def reason(self) -> str:
        different = list(dict.fromkeys(self.reasons))
        more = ["..."] if len(different) > _MOST_REASONS else []
        return "; ".join([*different[:_MOST_REASONS], *more])

    def answer(self) -> dict[str, Any]:
        """Return the answer in OTLP's JSON form, where 64-bit numbers are text."""
        if not self.refused:
            return {}
        partial = {"rejectedSpans": str(self.refused), "errorMessage": self.reason}
        return {"partialSuccess": partial}


def _by_attempt(found: Decoded) -> list[tuple[list[Span], set[int]]]:
    """Return the spans of each attempt, with the numbers of their OTLP spans."""
    spans: Mapping[tuple[str, str], list[Span]] = defaultdict(list)
    sources: Mapping[tuple[str, str], set[int]] = defaultdict(set)
    for span, source in zip(found.spans, found.sources, strict=True):
        key = (span.rollout_id, span.attempt_id)
        spans[key].append(span)
        sources[key].add(source)
    return [(spans[key], sources[key]) for key in spans]


def _sender(request: RouteRequest) -> Sender:
    """Return the attempt in URL or headers; empty if only the spans name it.

    Raises:
        Problem: URL and headers disagree, name only the rollout or only the attempt, or the key
            belongs to another attempt.
    """
    if not request.named:
        return Sender()
    identity = request.identity()
    return Sender(
        rollout_id=identity.rollout_id, attempt_id=identity.attempt_id, agent=identity.agent
    )


def _unpacked(body: bytes, encoding: str) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        message = f"OTLP comes plain or as gzip, not as {encoding!r}"
        raise Problem(415, "unsupported_content_encoding", message)
    unpacking = zlib.decompressobj(_GZIP_WINDOW)
    try:
        data = unpacking.decompress(body, _LARGEST + 1)
    except zlib.error as error:
        raise Problem(400, "malformed", f"The body is not gzip: {error}") from error
    if len(data) > _LARGEST:
        raise _too_large()
    if not unpacking.eof:
        raise Problem(400, "malformed", "The gzip body is incomplete")
    return data


def _too_large() -> Problem:
    message = f"The request has more than {_LARGEST} bytes: {_ADVICE}"
    return Problem(413, "too_large", message)


def _decoded(body: bytes, packing: str, kind: str, sender: Sender) -> Decoded:
    plain = _unpacked(body, packing)
    try:
        if kind == _PROTOBUF:
            return decode(protobuf.read_request(plain), sender=sender)
        return decode(msgspec.json.decode(plain), sender=sender)
    except (Malformed, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "malformed", f"The body is not an OTLP request: {error}") from error

"""The form of an event, and its encoding within a bounded size."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from agl_core.text import json_bytes, replaced_json

CHANNELS: Final = (
    "config:resolved",
    "run:started",
    "rollout:started",
    "rollout:finished",
    "trajectories:built",
    "batch:built",
    "update:applied",
    "resources:published",
    "step:finished",
    "evaluation:finished",
    "run:finished",
    "run:failed",
)
"""The channels of a run, in the order in which their first events usually come."""

_TEXT: Final = 1_000
"""Characters that are left of a text in an event that is too large."""
_ITEMS: Final = 100
"""Entries that are left of a list or table in an event that is too large."""
_DEPTH: Final = 8


class BusEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened in a run."""

    id: str
    """Unique; an event that is delivered twice has the same id both times. ``event_`` and 32 hex
    digits, which sort as the events of an outbox."""
    time: str
    """ISO 8601 in UTC with microseconds, by the clock of the run's machine."""
    channel: str
    """What happened, such as ``rollout:finished``."""
    service: str
    """Who reports it: ``events.service`` of the configuration."""
    data: dict[str, Any] = {}
    """The facts; the documentation lists those of each channel."""
    metadata: dict[str, Any] = {}
    """``run``, ``outbox``, ``sequence``, ``version``, and ``cut`` if parts were left out.

    ``sequence`` counts the events of an outbox: it orders them even if the clock was set back, and
    a gap is an event that was dropped. ``outbox`` is the id of its file.
    """


def new_event(
    channel: str, service: str, time: float, data: dict[str, Any], metadata: dict[str, Any]
) -> BusEvent:
    """Make an event, with an id of its outbox and number.

    Args:
        channel: What happened.
        service: Who reports it.
        time: When, in Unix seconds.
        data: The facts.
        metadata: `BusEvent.metadata`.
    """
    second, rest = divmod(round(time * 1e6), 1_000_000)
    return BusEvent(
        id=f"event_{metadata['outbox']}{metadata['sequence']:016x}",
        time=f"{_iso(second)}.{rest:06d}+00:00",
        channel=channel,
        service=service,
        data=data,
        metadata=metadata,
    )


@lru_cache(maxsize=8)
def _iso(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def encode(event: BusEvent, most_bytes: int) -> tuple[bytes, bool]:
    """Return an event as JSON of at most `most_bytes`, and whether parts were cut.

    Of an event that is larger, texts keep their first 1,000 characters and lists and tables their
    first 100 entries; if that is still too large, `BusEvent.data` is empty. ``metadata.cut`` is the
    size in bytes before. Lone surrogates become U+FFFD.
    """
    body = _json(event)
    if len(body) <= most_bytes:
        return body, False
    metadata = {**event.metadata, "cut": len(body)}
    data = _short(msgspec.json.decode(body)["data"], _DEPTH)
    short = msgspec.structs.replace(event, data=data, metadata=metadata)
    body = _json(short)
    if len(body) > most_bytes:
        body = _json(msgspec.structs.replace(short, data={}))
    return body, True


def decode(body: bytes) -> BusEvent:
    """Return the event of a JSON text.

    Raises:
        msgspec.MsgspecError: it is not an event.
    """
    return msgspec.json.decode(body, type=BusEvent)


def _json(event: BusEvent) -> bytes:
    body = json_bytes(event)
    return replaced_json(body) if b"\\u" in body else body


def _short(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value[:_TEXT]
    if isinstance(value, dict) and depth:
        items: list[tuple[Any, Any]] = list(value.items())
        return {str(key)[:_TEXT]: _short(item, depth - 1) for key, item in items[:_ITEMS]}
    if isinstance(value, list | tuple) and depth:
        entries: list[Any] = list(value[:_ITEMS])
        return [_short(item, depth - 1) for item in entries]
    return value if isinstance(value, int | float | None) else str(value)[:_TEXT]

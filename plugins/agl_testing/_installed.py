"""What installed plugins add to a gateway, and the fake server's answers in those dialects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from agl_core.app import all_of, load_plugins
from agl_core.gateway import AnswerReader, Payload
from agl_core.interfaces import Dialect, DialectAnswer, RewriterFactory, RouteFactory
from agl_core.plugins import PluginManager


@cache
def installed_dialects() -> Mapping[str, Dialect]:
    """Return the dialects of installed plugins, by method and path below ``/v1``."""
    return all_of(_plugins().registry("dialects"))


@cache
def installed_routes() -> Mapping[str, RouteFactory]:
    """Return the routes of installed plugins, by method and path below ``/v1``."""
    return all_of(_plugins().registry("routes"))


@cache
def installed_rewriters() -> Sequence[RewriterFactory]:
    """Return the rewriters of installed plugins, in the order of their names."""
    return [*all_of(_plugins().registry("rewriters")).values()]


@cache
def _plugins() -> PluginManager:
    return load_plugins()


def whole(answer: DialectAnswer, payload: dict[str, Any]) -> bytes:
    """Convert a chat completion to the dialect's document."""
    for delta in AnswerReader().read(Payload(msgspec.json.encode(payload)), whole=True):
        answer.add(delta)
    answer.end()
    return answer.document()


def streamed(answer: DialectAnswer, chunks: Iterable[dict[str, Any]]) -> Iterable[bytes]:
    """Yield a chat completion's chunks as events of the dialect, one piece per chunk."""
    reader = AnswerReader()
    for chunk in chunks:
        deltas = reader.read(Payload(msgspec.json.encode(chunk)))
        yield b"".join(map(answer.add, deltas))
    yield answer.end()

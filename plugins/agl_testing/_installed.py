"""Routes and dialects of installed plugins, and the fake server's answers in those dialects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec

from agl_core.app.parts import make_dialects, make_routes
from agl_core.builtin import load_plugins
from agl_core.gateway import AnswerReader, Payload
from agl_core.interfaces import Dialect, DialectAnswer, RouteFactory


@cache
def installed_dialects() -> Mapping[str, Dialect]:
    """Those of the plugins of this environment, by method and path below ``/v1``."""
    return make_dialects(load_plugins())


@cache
def installed_routes() -> Mapping[str, RouteFactory]:
    """Those of the plugins of this environment, by method and path below ``/v1``."""
    return make_routes(load_plugins())


def whole(answer: DialectAnswer, payload: dict[str, Any]) -> bytes:
    """A chat completion in the dialect."""
    for delta in AnswerReader().read(Payload(msgspec.json.encode(payload)), whole=True):
        answer.add(delta)
    answer.end()
    return answer.document()


def streamed(answer: DialectAnswer, chunks: Iterable[dict[str, Any]]) -> Iterable[bytes]:
    """Chunks of a chat completion as events of the dialect, one piece for each chunk."""
    reader = AnswerReader()
    for chunk in chunks:
        deltas = reader.read(Payload(msgspec.json.encode(chunk)))
        yield b"".join(map(answer.add, deltas))
    yield answer.end()

"""What pages send to change something: objects of JSON, of a limited size."""

# Types of the web framework are not known where the extra is not installed.
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from starlette.requests import Request

from agl_core.errors import ConfigError

_MOST_BYTES: Final = 1 << 20


async def sent_object(request: Request) -> Mapping[str, Any]:
    """Return the object of JSON that a request has.

    Another type of content is refused: a form of another site can send texts and forms, but JSON
    only with the permission that this server does not give.

    Raises:
        ConfigError: it is none, or too large.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ConfigError(f"The content is {kind or 'of no type'}: send application/json")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_BYTES:
            raise ConfigError(f"The content is larger than {_MOST_BYTES >> 20} MiB: shorten it")
    try:
        value = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The content is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError("The content is no object of JSON")
    return cast("dict[str, Any]", value)

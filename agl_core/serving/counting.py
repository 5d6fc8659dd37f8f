"""How long a prompt would be, as ``/tokenize`` answers it: in the form of vLLM's."""

from __future__ import annotations

from typing import Final

import msgspec

from agl_core.errors import EngineError
from agl_core.interfaces import Backend, Problem

PATH: Final = "/tokenize"
"""Below an agent's base URL; of a server as vLLM's, beside ``/v1``."""
REFUSED: Final = "prompt_refused"
"""Code of the answer, with status 400, that the chat template does not take the messages."""
NOT_COUNTED: Final = 501
"""Status of the answer that the backend cannot count."""


class CountAnswer(msgspec.Struct, frozen=True):
    """A count on the wire."""

    count: int
    max_model_len: int | None = None


async def answer_of(backend: Backend, body: bytes) -> bytes:
    """The count of a prompt as JSON.

    Raises:
        Problem: there is none.
    """
    try:
        counted = await backend.count_tokens(body)
    except ValueError as error:
        raise Problem(400, REFUSED, str(error)) from error
    except EngineError as error:
        raise Problem(502, "engine_error", str(error), retry=True) from error
    if counted is None:
        message = "The backend cannot tell how many tokens a prompt has: it has no /tokenize"
        raise Problem(NOT_COUNTED, "not_counted", message)
    return msgspec.json.encode(CountAnswer(counted.tokens, counted.limit))

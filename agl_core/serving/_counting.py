"""Count the tokens of a prompt over HTTP."""

from __future__ import annotations

from typing import Final

import msgspec

from agl_core.errors import EngineError
from agl_core.interfaces import Backend, Problem

COUNT_PATH: Final = "/tokenize"
"""Path for counting tokens: below an agent's base URL; at a backend's server not below ``/v1``."""
PROMPT_REFUSED: Final = "prompt_refused"
"""Error code, with status 400, if the chat template does not accept the messages."""
NOT_COUNTED: Final = 501
"""Status if the backend cannot count tokens."""


class CountAnswer(msgspec.Struct, frozen=True):
    """The answer to a request for a token count."""

    count: int
    max_model_len: int | None = None


async def count_prompt(backend: Backend, body: bytes) -> bytes:
    """Return the number of tokens in a prompt, as the JSON of `CountAnswer`.

    Raises:
        Problem: the backend refuses the prompt, fails, or cannot count tokens.
    """
    try:
        counted = await backend.count_tokens(body)
    except ValueError as error:
        raise Problem(400, PROMPT_REFUSED, str(error)) from error
    except EngineError as error:
        raise Problem(502, "engine_error", str(error), retry=True) from error
    if counted is None:
        message = "The backend cannot count the tokens of a prompt: it has no /tokenize"
        raise Problem(NOT_COUNTED, "not_counted", message)
    return msgspec.json.encode(CountAnswer(counted.tokens, counted.limit))

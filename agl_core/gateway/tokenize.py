"""Count a prompt's tokens (``POST .../v1/tokenize``), for programs that shorten long prompts."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agl_core.errors import EngineError
from agl_core.gateway._chat import read_body
from agl_core.interfaces import (
    NOT_COUNTED,
    PROMPT_REFUSED,
    Access,
    Backend,
    CountAnswer,
    Problem,
    RouteAnswer,
    RouteRequest,
    Store,
)
from agl_core.types import Losses


class _Prompt(msgspec.Struct, omit_defaults=True):
    """The fields of a chat request that determine its prompt."""

    messages: list[dict[str, Any]]
    model: str = ""
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


_prompts: Final = msgspec.json.Decoder(_Prompt)


class TokenCounting:
    """Route that lets the backend of the agent's policy count tokens; it records nothing."""

    access: Access = "agents"

    def __init__(self, store: Store, losses: Losses) -> None:
        del store, losses

    async def serve(self, request: RouteRequest) -> RouteAnswer:
        """Answer as the ``/tokenize`` of inference servers does.

        Raises:
            Problem: the request or its prompt is refused, or the backend cannot count.
        """
        identity = request.identity()
        request.admit(identity.rollout_id, identity.attempt_id)
        prompt = read_body(await request.body(), _prompts.decode, what="prompt")
        backend, model = request.backend(identity, prompt.model)
        messages, tools = request.rewritten(identity, prompt.messages, prompt.tools or [])
        sent = msgspec.structs.replace(prompt, model=model, messages=messages, tools=tools or None)
        body = msgspec.json.encode(sent)
        return RouteAnswer(body=await count_prompt(backend, body))


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

"""Count a prompt's tokens (``POST .../v1/tokenize``), for programs that shorten long prompts."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agl_core.errors import EngineError
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
    read_body,
)
from agl_core.types import Losses


class Prompt(msgspec.Struct, omit_defaults=True):
    """The fields of a chat request that determine its prompt."""

    messages: list[dict[str, Any]]
    model: str = ""
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


_prompts: Final = msgspec.json.Decoder(Prompt)


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
        prompt = read_body(await request.body(), _prompts.decode, what="prompt")
        return RouteAnswer(body=msgspec.json.encode(await counted(request, prompt)))


async def counted(request: RouteRequest, prompt: Prompt) -> CountAnswer:
    """Return the number of tokens in a prompt, after the run's changes to it.

    Args:
        request: The request of the attempt whose agent's policy counts.
        prompt: The prompt as the agent would send it.

    Raises:
        Problem: the request's attempt is not open, or the backend refuses the prompt, fails, or
            cannot count tokens.
    """
    identity = request.identity()
    request.admit(identity.rollout_id, identity.attempt_id)
    backend, model = request.backend(identity, prompt.model)
    messages, tools = request.rewritten(identity, prompt.messages, prompt.tools or [])
    sent = msgspec.structs.replace(prompt, model=model, messages=messages, tools=tools or None)
    return await count_prompt(backend, msgspec.json.encode(sent))


async def count_prompt(backend: Backend, body: bytes) -> CountAnswer:
    """Return the number of tokens in the prompt of a chat request.

    Raises:
        Problem: the backend refuses the prompt, fails, or cannot count tokens.
    """
    try:
        answer = await backend.count_tokens(body)
    except ValueError as error:
        raise Problem(400, PROMPT_REFUSED, str(error)) from error
    except EngineError as error:
        raise Problem(502, "engine_error", str(error), retry=True) from error
    if answer is None:
        message = "The backend cannot count the tokens of a prompt: it has no /tokenize"
        raise Problem(NOT_COUNTED, "not_counted", message)
    return CountAnswer(answer.tokens, answer.limit)

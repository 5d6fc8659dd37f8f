"""How long a prompt would be: ``POST .../v1/tokenize``, for whoever cuts prompts before sending."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from agl_core.budget.gateway import NOT_COUNTED, REFUSED, CountAnswer
from agl_core.errors import EngineError
from agl_core.gateway.attempts import Attempts
from agl_core.gateway.dialects.surrogates import mended
from agl_core.gateway.problems import Problem
from agl_core.gateway.routing import Route, Router, Target, identify
from agl_core.interfaces import Backend, CountingBackend
from agl_core.serving import asgi


class _Prompt(msgspec.Struct, omit_defaults=True):
    """What of a chat request makes its prompt."""

    messages: list[dict[str, Any]]
    model: str = ""
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


_prompts: Final = msgspec.json.Decoder(_Prompt)


class TokenCounting:
    """Lets the backend of the caller's policy count; nothing of it is recorded."""

    def __init__(self, router: Router, attempts: Attempts) -> None:
        self._router = router
        self._attempts = attempts

    async def serve(
        self,
        target: Target,
        headers: Sequence[tuple[bytes, bytes]],
        receive: asgi.Receive,
        send: asgi.Send,
    ) -> None:
        """Answer in the form of vLLM.

        Raises:
            Problem: the caller or its prompt is refused, or the backend cannot count.
        """
        identity = identify(target, headers)
        self._attempts.admit(identity)
        try:
            prompt = _read(await asgi.read_body(receive))
        except asgi.ClientLeft:
            return
        route = self._router.find(identity.agent, prompt.model)
        await asgi.respond(send, 200, await answer_of(route.backend, _body(prompt, route)))


async def answer_of(backend: Backend, body: bytes) -> bytes:
    """The count of a prompt as JSON.

    Raises:
        Problem: there is none.
    """
    try:
        counted = await backend.count_tokens(body) if isinstance(backend, CountingBackend) else None
    except ValueError as error:
        raise Problem(400, REFUSED, str(error)) from error
    except EngineError as error:
        raise Problem(502, "engine_error", str(error), retry=True) from error
    if counted is None:
        message = "The backend cannot tell how many tokens a prompt has: it has no /tokenize"
        raise Problem(NOT_COUNTED, "not_counted", message)
    return msgspec.json.encode(CountAnswer(counted.tokens, counted.limit))


def _read(body: bytes) -> _Prompt:
    try:
        try:
            return _prompts.decode(body)
        except msgspec.DecodeError:
            return _prompts.decode(mended(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "invalid_body", f"Request body is no prompt: {error}") from error


def _body(prompt: _Prompt, route: Route) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(prompt, model=route.upstream_model))

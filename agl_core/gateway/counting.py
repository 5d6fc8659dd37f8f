"""How long a prompt would be: ``POST .../v1/tokenize``, for whoever cuts prompts before sending."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agl_core.gateway.attempts import Attempts
from agl_core.gateway.dialects.surrogates import mended
from agl_core.gateway.routing import Caller, Route, Router
from agl_core.serving import asgi
from agl_core.serving.counting import answer_of
from agl_core.serving.problems import Problem


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
        caller: Caller,
        receive: asgi.Receive,
        send: asgi.Send,
    ) -> None:
        """Answer in the form of vLLM.

        Raises:
            Problem: the caller or its prompt is refused, or the backend cannot count.
        """
        identity = caller.identity()
        self._attempts.admit(identity)
        try:
            prompt = _read(await asgi.read_body(receive))
        except asgi.ClientLeft:
            return
        route = self._router.find(identity.known_as, prompt.model)
        await asgi.respond(send, 200, await answer_of(route.backend, _body(prompt, route)))


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

"""Count the tokens of a Messages request (``POST .../v1/messages/count_tokens``)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agl_anthropic._request import chat_of, object_of
from agl_core.gateway import count_prompt
from agl_core.interfaces import Access, CountAnswer, RouteAnswer, RouteRequest, Store
from agl_core.types import Losses

_PROMPT: Final = ("messages", "tools", "chat_template_kwargs")
"""Fields of a chat request that determine its prompt, besides its model."""


class MessageCounting:
    """Route that lets the backend of the agent's policy count tokens; it records nothing."""

    access: Access = "agents"

    def __init__(self, store: Store, losses: Losses) -> None:
        del store, losses

    async def serve(self, request: RouteRequest) -> RouteAnswer:
        """Answer as Anthropic's API does.

        Raises:
            Problem: the request or its prompt is refused, or the backend cannot count.
        """
        identity = request.identity()
        request.admit(identity.rollout_id, identity.attempt_id)
        given = object_of(await request.body())
        chat = chat_of({name: value for name, value in given.items() if value is not None})
        backend, model = request.backend(identity, str(chat.get("model", "")))
        prompt: dict[str, Any] = {name: chat[name] for name in _PROMPT if name in chat}
        messages, tools = request.rewritten(identity, prompt["messages"], prompt.get("tools", []))
        sent = {
            **prompt,
            "model": model,
            "messages": messages,
            **({"tools": tools} if tools else {}),
        }
        counted = await count_prompt(backend, msgspec.json.encode(sent))
        answer = msgspec.json.decode(counted, type=CountAnswer)
        return RouteAnswer(body=msgspec.json.encode({"input_tokens": answer.count}))

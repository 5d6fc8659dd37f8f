"""Count the tokens of a Messages request (``POST .../v1/messages/count_tokens``)."""

from __future__ import annotations

import msgspec
from agl_counting import Prompt, counted

from agl_anthropic._request import chat_of, read_fields
from agl_core.interfaces import Access, RouteAnswer, RouteRequest, Store
from agl_core.types import Losses


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
        chat = chat_of(read_fields(await request.body()))
        chat["model"] = str(chat.get("model", ""))
        answer = await counted(request, msgspec.convert(chat, Prompt))
        return RouteAnswer(body=msgspec.json.encode({"input_tokens": answer.count}))

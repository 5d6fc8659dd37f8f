"""Rendering of whole conversations, up to the token that ends their last answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agl_core.interfaces import Renderer
from agl_torch.chat.template import ChatTemplate, RenderError

__all__ = ["conversation_renderer"]


def conversation_renderer(template: ChatTemplate, ends: Collection[int]) -> Renderer:
    """Return a model's chat template as a function; see `agl_core.interfaces.Renderer`.

    Args:
        template: The chat template.
        ends: Ids of the tokens with which the model ends an answer.
    """

    def render(
        messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[int, ...]:
        if not messages or messages[-1].get("role") != "assistant":
            return template.encode(messages, tools=tools)
        whole = template.encode(messages, tools=tools, options={"add_generation_prompt": False})
        prompt = template.encode(messages[:-1], tools=tools)
        if whole[: len(prompt)] != prompt:
            return whole
        for index in range(len(prompt), len(whole)):
            if whole[index] in ends:
                return whole[: index + 1]
        raise RenderError(
            f"messages: the chat template writes none of the model's end tokens {sorted(ends)} "
            f"after an answer"
        )

    return render

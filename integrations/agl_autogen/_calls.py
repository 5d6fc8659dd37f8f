"""Model calls through AutoGen's OpenAI clients: one span each, with what AutoGen made of them."""

from __future__ import annotations

from typing import Any

from autogen_core.models import CreateResult

from agl_autogen import _handling
from agl_autogen._place import Place
from agl_autogen._work import FRAMEWORK, Watcher, Work
from agl_core import semconv
from agl_core.tracing import active, guarded


class _Call(Watcher):
    """One request for a completion, with the retries of the client library."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._result: CreateResult | None = None

    def _saw(self, item: Any) -> None:
        # A stream gives pieces of text before it.
        if isinstance(item, CreateResult):
            self._result = item

    def _end(self, error: BaseException | None) -> None:
        self._work.end(error, _attributes(self._result) if self._result is not None else None)


def _attributes(result: CreateResult) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: [result.finish_reason],
    }
    if result.thought:
        attributes[semconv.AGL_THOUGHT] = result.thought
    if result.usage.prompt_tokens or result.usage.completion_tokens:
        # A stream states none unless it was asked to.
        attributes[semconv.GEN_AI_USAGE_INPUT_TOKENS] = result.usage.prompt_tokens
        attributes[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] = result.usage.completion_tokens
    return attributes


@guarded(FRAMEWORK)
def begin_call(client: Any, *args: Any, **kwargs: Any) -> Watcher | None:
    """A client is about to ask its model."""
    del client, args, kwargs
    context = active()
    if context is None:
        return None
    Place.of(context)
    _handling.speaking_here()
    return _Call(Work.begin(context, "call", "chat", {semconv.GEN_AI_OPERATION_NAME: "chat"}))

"""Record model calls of AutoGen's OpenAI clients, and tool calls: one span for each."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any

from autogen_core.models import CreateResult
from autogen_core.tools import BaseTool

from agl_autogen._speakers import TURNS, speaking_here
from agl_autogen._watching import FRAMEWORK, TRACER, Watcher
from agl_core import semconv
from agl_core.tracing import SpanScope, SpanStart, active, guarded, tool_attributes
from agl_core.types import SpanKind


class _Call(Watcher):
    """One model call, including the retries of the client library."""

    def _saw(self, item: Any) -> None:
        # A stream yields pieces of text before its result.
        if isinstance(item, CreateResult) and self._span is not None:
            self._span.set_attributes(_attributes(item))


def _attributes(result: CreateResult) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: [result.finish_reason],
    }
    if result.thought:
        attributes[semconv.AGL_THOUGHT] = result.thought
    if result.usage.prompt_tokens or result.usage.completion_tokens:
        # A stream has no usage unless it was requested.
        attributes[semconv.GEN_AI_USAGE_INPUT_TOKENS] = result.usage.prompt_tokens
        attributes[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] = result.usage.completion_tokens
    return attributes


@guarded(FRAMEWORK)
def begin_call(client: Any, *args: Any, **kwargs: Any) -> Watcher | None:
    """Open the span of a client's model call."""
    del client, args, kwargs
    context = active()
    if context is None:
        return None
    TURNS.of(context)
    speaking_here()
    attributes = {semconv.GEN_AI_OPERATION_NAME: "chat"}
    start = SpanStart(SpanKind.LLM, "chat", attributes=attributes)
    return _Call(TRACER.open(context.recorder, start))


class _ToolRun(Watcher):
    """One run of a tool; the last item of a stream is the result."""

    def __init__(self, span: SpanScope, tool: BaseTool[Any, Any]) -> None:
        super().__init__(span)
        self._run = span
        self._tool = tool
        self._results: list[Any] = []

    def _saw(self, item: Any) -> None:
        self._results[:] = [item]

    def _end(self, error: BaseException | None) -> None:
        attributes: dict[str, Any] = {}
        if error is None and self._results:
            attributes[semconv.GEN_AI_TOOL_RESULT] = _as_text(self._tool, self._results[0])
        self._run.end(error, attributes=attributes)


def _as_text(tool: BaseTool[Any, Any], result: Any) -> Any:
    """Return the result as the model gets it."""
    if isinstance(result, str):
        return result
    try:
        return tool.return_value_as_string(result)
    except Exception:  # noqa: BLE001  the tool's own; AutoGen gets it too and gives it to the model
        return result


@guarded(FRAMEWORK)
def begin_tool(
    tool: BaseTool[Any, Any],
    args: Mapping[str, Any],
    cancellation_token: Any,
    call_id: str | None = None,
) -> Watcher | None:
    """Open the span of a run of `tool`, which an agent or the program called."""
    del cancellation_token
    context = active()
    if context is None:
        return None
    turn = TURNS.of(context).here()
    if turn is not None and call_id is not None:
        turn.ran(call_id)
    attributes = tool_attributes(tool.name, args, call_id=call_id)
    start = SpanStart(SpanKind.TOOL, tool.name, attributes=attributes)
    return _ToolRun(TRACER.open(context.recorder, start), tool)


def in_context(original: Callable[..., Any], live: Callable[[], bool]) -> Callable[..., Any]:
    """Wrap `FunctionTool.run` so that a function that is not async runs in the rollout's context.

    AutoGen runs it in a pool thread without that context: its rewards and spans would be lost, and
    its model requests would have no identity.
    """

    async def run(tool: Any, args: Any, cancellation_token: Any) -> Any:
        if live() and active() is not None:
            tool = _carrying(tool) or tool
        return await original(tool, args, cancellation_token)

    return run


@guarded(FRAMEWORK)
def _carrying(tool: Any) -> Any:
    """Return a copy of the tool that runs in the current context; None for an async function."""
    function = tool._func  # noqa: SLF001  there is no public way to replace it
    if inspect.iscoroutinefunction(function):
        return None
    carrying = copy.copy(tool)
    carrying._func = functools.partial(copy_context().run, function)  # noqa: SLF001
    return carrying

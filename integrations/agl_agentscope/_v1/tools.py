"""Record tool calls with the exception that the framework turns into text for the model."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final

from agentscope.tool import ToolResponse

from agl_agentscope._spans import FRAMEWORK, TRACER
from agl_agentscope._v1 import messages
from agl_core import semconv
from agl_core.tracing import SpanScope, active, guarded

Live = Callable[[], bool]
Function = Callable[..., Any]

_UNREACHED: Final = ("FunctionNotFoundError", "FunctionInactiveError")
"""First words of the framework's result for a call that reaches no tool."""


def recording(original: Function, live: Live) -> Function:
    """Wrap `Toolkit.call_tool_function`, which returns the tool's results as a stream."""

    async def call_tool_function(toolkit: Any, tool_call: Any) -> Any:
        use = _begin(toolkit, tool_call) if live() else None
        if use is None:
            return await original(toolkit, tool_call)
        items: AsyncGenerator[Any, None] = await use.span.run(
            lambda: original(use.toolkit, tool_call)
        )
        return use.span.stream(items, use.see, kind=ToolResponse)

    return call_tool_function


class _Use:
    """One tool call; `toolkit` is a copy of the toolkit in which the tool's function is wrapped."""

    def __init__(self, span: SpanScope, toolkit: Any, name: str) -> None:
        self.span = span
        self._ran = False
        self._whole = False
        self.toolkit = toolkit
        tool = toolkit.tools.get(name)
        # A tool that runs in the background fails after its call has got a result.
        if tool is not None and not getattr(tool, "async_execution", False):
            self.toolkit = _with(toolkit, name, tool, self._watched(tool.original_func))

    @guarded(FRAMEWORK)
    def see(self, chunk: ToolResponse) -> None:
        result = messages.result(chunk.content)
        self.span.set_attributes({semconv.GEN_AI_TOOL_RESULT: result})
        if self._whole:
            # The result is complete, and the framework does not read its last tool's stream to
            # the end.
            self.span.end()
        elif not self._ran and str(result).startswith(_UNREACHED):
            self.span.end(failed=str(result))

    def _watched(self, function: Function) -> Function:
        if inspect.iscoroutinefunction(function):

            async def awaited(**kwargs: Any) -> Any:
                try:
                    return self._saw(await function(**kwargs))
                except BaseException as error:
                    self._caught(error)
                    raise

            return functools.wraps(function)(awaited)

        def called(**kwargs: Any) -> Any:
            try:
                return self._saw(function(**kwargs))
            except BaseException as error:
                self._caught(error)
                raise

        return functools.wraps(function)(called)

    def _saw(self, given: Any) -> Any:
        self._ran = True
        self._whole = isinstance(given, ToolResponse)
        return given

    def _caught(self, error: BaseException) -> None:
        self._whole = True
        self.span.caught = error


@guarded(FRAMEWORK)
def _begin(toolkit: Any, tool_call: Mapping[str, Any]) -> _Use | None:
    context = active()
    if context is None:
        return None
    name = tool_call["name"]
    start = TRACER.tool(name, tool_call.get("input"), call_id=tool_call["id"])
    return _Use(TRACER.open(context.recorder, start), toolkit, name)


def _with(toolkit: Any, name: str, tool: Any, function: Function) -> Any:
    """Return a copy of the toolkit in which the tool `name` calls `function`."""
    copied, registered = copy.copy(toolkit), copy.copy(tool)
    registered.original_func = function
    copied.tools = {**toolkit.tools, name: registered}
    return copied

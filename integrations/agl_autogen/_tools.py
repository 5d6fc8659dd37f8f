"""Tools of AutoGen: one span each, inside which nobody speaks."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any

from autogen_core.tools import BaseTool

from agl_autogen._place import Place
from agl_autogen._work import FRAMEWORK, Watcher, Work
from agl_core import semconv
from agl_core.tracing import active, guarded


class _ToolRun(Watcher):
    """One run of a tool; a stream's last item is its result."""

    def __init__(self, work: Work, tool: BaseTool[Any, Any]) -> None:
        self._work = work
        self._tool = tool
        self._results: list[Any] = []

    def _saw(self, item: Any) -> None:
        self._results[:] = [item]

    def _end(self, error: BaseException | None) -> None:
        attributes: dict[str, Any] = {}
        if error is None and self._results:
            attributes[semconv.GEN_AI_TOOL_RESULT] = _as_told(self._tool, self._results[0])
        self._work.end(error, attributes)


def _as_told(tool: BaseTool[Any, Any], result: Any) -> Any:
    """The result as the model is told it."""
    if isinstance(result, str):
        return result
    try:
        return tool.return_value_as_string(result)
    except Exception:  # noqa: BLE001  the tool's own; it fails for AutoGen too, which tells the model
        return result


@guarded(FRAMEWORK)
def begin_tool(
    tool: BaseTool[Any, Any],
    args: Mapping[str, Any],
    cancellation_token: Any,
    call_id: str | None = None,
) -> Watcher | None:
    """`tool` is run, by an agent or by the program."""
    del cancellation_token
    context = active()
    if context is None:
        return None
    attributes: dict[str, Any] = {
        semconv.GEN_AI_TOOL_NAME: tool.name,
        semconv.GEN_AI_TOOL_ARGUMENTS: args,
    }
    run = Place.of(context).run
    if call_id is not None:
        attributes[semconv.GEN_AI_TOOL_CALL_ID] = call_id
        if run is not None:
            run.ran(call_id)
    return _ToolRun(Work.begin(context, "tool", tool.name, attributes), tool)


def in_context(original: Callable[..., Any], live: Callable[[], bool]) -> Callable[..., Any]:
    """Let a plain function run as a tool in the context of the rollout.

    AutoGen hands it to a thread of a pool, which has none: what it emits would be lost, and a
    request that it sends would go out without an identity.
    """

    async def run(tool: Any, args: Any, cancellation_token: Any) -> Any:
        if live() and active() is not None:
            tool = _carrying(tool) or tool
        return await original(tool, args, cancellation_token)

    return run


@guarded(FRAMEWORK)
def _carrying(tool: Any) -> Any:
    """The same tool around the same function; None where no thread is involved."""
    function = tool._func  # noqa: SLF001  a copy of the tool is the only way in
    if inspect.iscoroutinefunction(function):
        return None
    carrying = copy.copy(tool)
    carrying._func = functools.partial(copy_context().run, function)  # noqa: SLF001
    return carrying

"""Tool calls that reach no tool, such as those with an unknown name: no middleware sees them.

A model's answer lists the requested calls, and each call that reaches a tool is removed. The
framework writes the result of every other call, and puts it into the run's next model call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from agent_framework import ChatResponse, Content, Message

from agl_agent_framework import _messages
from agl_agent_framework._spans import FRAMEWORK, TRACER
from agl_core.tracing import Recorder, SpanScope, Tables, active, guarded
from agl_core.types import Scope


class _Asked:
    """The tool calls of one attempt that no tool has taken, by the run's span id and call id."""

    def __init__(self, recorder: Recorder) -> None:
        del recorder
        self._runs: dict[str, dict[str, Content]] = {}

    def __call__(self, opened: Scope | None) -> Scope | None:
        """Return `opened`: each span's scope is current in its own context."""
        return opened

    def __contains__(self, span_id: str) -> bool:
        return span_id in self._runs

    def add(self, run: SpanScope, call_id: str, call: Content) -> None:
        span_id = run.span_id
        if span_id not in self._runs:
            self._runs[span_id] = {}
            run.on_end = lambda: self._runs.pop(span_id, None)
        self._runs[span_id][call_id] = call

    def of(self, run: SpanScope) -> dict[str, Content]:
        return self._runs.get(run.span_id, {})


_ASKED: Final = Tables(FRAMEWORK, _Asked)


@guarded(FRAMEWORK)
def note_answer(run: SpanScope | None, response: Any) -> None:
    """Record the tool calls that a model's answer requests in `run`."""
    context = active()
    if run is None or context is None or not isinstance(response, ChatResponse):
        return
    for content in _contents(response.messages):
        if content.type == "function_call" and content.call_id:
            _ASKED.of(context).add(run, content.call_id, content)


def note_taken(call_id: str | None) -> None:
    """Remove a call that a tool of the current run has taken."""
    table, run = _ASKED.here(), TRACER.speaker()
    if table is not None and run is not None and call_id:
        table.of(run).pop(call_id, None)


def record_unreached(messages: Sequence[Message]) -> None:
    """Record the calls whose failed result is in the next request of the current run."""
    context, table, run = active(), _ASKED.here(), TRACER.speaker()
    if context is None or table is None or run is None:
        return
    asked = table.of(run)
    for result in _contents(messages) if asked else ():
        if result.type != "function_result" or result.call_id not in asked:
            continue
        call = asked.pop(result.call_id)
        if result.exception is not None:
            arguments = call.parse_arguments()
            start = TRACER.tool(str(call.name), arguments, call_id=result.call_id)
            tool = TRACER.open(context.recorder, start)
            tool.end(failed=str(result.result), attributes=_messages.tool_result(result))


def _contents(messages: Sequence[Message]) -> list[Content]:
    return [content for message in messages for content in message.contents]

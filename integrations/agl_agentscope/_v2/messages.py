"""Read the framework's objects as span attributes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from agentscope.event import (
    ExternalExecutionResultEvent,
    UserConfirmResultEvent,
    UserInterruptEvent,
)
from agentscope.message import TextBlock
from agentscope.model import ChatResponse
from pydantic import BaseModel

from agl_agentscope._spans import TRACER
from agl_core import semconv
from agl_core.tracing import AttemptContext, handoff

RESUMING: Final = (UserConfirmResultEvent, ExternalExecutionResultEvent, UserInterruptEvent)
"""Types of input with which an agent continues its previous reply."""
_ASSIGN: Final = "TeamAssign"
"""Tool with which the leader of a `TeamPipeline` gives a task to a member."""


def answer(response: ChatResponse) -> Mapping[str, Any]:
    """Return the id and usage of a model's answer."""
    usage = response.usage
    return {
        semconv.GEN_AI_RESPONSE_ID: response.id,
        **(
            {
                semconv.GEN_AI_USAGE_INPUT_TOKENS: usage.input_tokens,
                semconv.GEN_AI_USAGE_OUTPUT_TOKENS: usage.output_tokens,
            }
            if usage is not None
            else {}
        ),
    }


def arguments(given: str) -> Any:
    """Parse a tool's arguments as JSON; return the model's text if they are not JSON."""
    with suppress(ValueError):
        return json.loads(given)
    return given


def result(content: Any) -> Any:
    """Return a tool's result: a string if it has only text, else the framework's form."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content
    blocks = cast("Sequence[Any]", content)
    if blocks and all(isinstance(block, TextBlock) for block in blocks):
        return "".join(block.text for block in blocks)
    return [block.model_dump() if isinstance(block, BaseModel) else block for block in blocks]


def exchange(agent: Any, call_id: str) -> tuple[Any, Any]:
    """Return a tool call and its result from the agent's context, None for each that is missing."""
    for message in reversed(agent.state.context):
        calls = [each for each in message.get_content_blocks("tool_call") if each.id == call_id]
        if calls:
            results = message.get_content_blocks("tool_result")
            outputs = [result(each.output) for each in results if each.id == call_id]
            return calls[-1], outputs[-1] if outputs else None
    return None, None


def record_handoff(context: AttemptContext, source: str, call: Any) -> None:
    """Record that an agent gave a task to a member of its team."""
    given = arguments(call.input)
    if call.name != _ASSIGN or not isinstance(given, Mapping):
        return
    speaker = TRACER.speaker()
    run_id = speaker.span_run_id if speaker is not None else None
    member = cast("Mapping[str, Any]", given).get("member")
    start = handoff(source, member, agent=source, agent_run_id=run_id)
    TRACER.open(context.recorder, start).end()

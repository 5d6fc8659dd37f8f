"""Conversations as the run's filters let them be trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agl_core import semconv
from agl_core.interfaces import AgentCall, AttemptRecord, Filter
from agl_core.types import Losses
from agl_imitation._conversations import Example

__all__ = ["CLEANED", "cleaned", "unclean_agents"]

CLEANED = "conversations_cleaned"
"""Cause of loss: conversations whose texts a filter changed."""


def cleaned(example: Example, filters: Sequence[Filter], losses: Losses) -> Example:
    """Return a conversation with the texts that filters leave, counted if they change any."""
    given = [example.messages, example.tools]
    made = _cleaned(given, filters)
    if made == given:
        return example
    losses.add(CLEANED)
    return replace(example, messages=made[0], tools=made[1])


def unclean_agents(record: AttemptRecord, filters: Sequence[Filter]) -> set[str]:
    """Return the agents of whose calls a filter changes a text, so that no token may be used."""
    if not filters:
        return set()
    masked = {
        span.call.id
        for span in record.spans
        if span.call is not None and semconv.AGL_MASKED in span.attributes
    }
    return {
        call.agent for call in record.calls if call.id in masked or not _is_clean(call, filters)
    }


def _is_clean(call: AgentCall, filters: Sequence[Filter]) -> bool:
    said = [
        [each.text, each.reasoning, each.tool_calls, each.function_call, each.refusal, each.audio]
        for each in call.record.choices
    ]
    given = [call.messages, call.record.tools, said]
    return _cleaned(given, filters) == given


def _cleaned(value: Any, filters: Sequence[Filter]) -> Any:
    for each in filters:
        value = each.cleaned(value, "imitation")
    return value

"""Checks of ``agl doctor`` for common errors with AutoGen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from agl_checks import (
    CLOSED_LOOP,
    failed_tools,
    failures_saying,
    is_from,
    records_from,
)

from agl_autogen._agents import ANSWERS, RESPONSE
from agl_autogen._speakers import SELECTOR
from agl_autogen._watching import FRAMEWORK
from agl_core import semconv
from agl_core.interfaces import AttemptRecord
from agl_core.types import Finding, Span, SpanKind

_FAILURES: Final = {
    "autogen.loop": (
        CLOSED_LOOP,
        "the client's event loop is closed",
        (
            "A client belongs to the loop that used it first: make it inside the agent function, and "
            "make that function async instead of calling asyncio.run in it."
        ),
    ),
    "autogen.runtime": (
        "Request names no rollout and attempt",
        "a request did not say which rollout it belongs to",
        (
            "Start a runtime of your own inside the agent function: its tasks see the context in which "
            "start() was called. Threads of your own need contextvars.copy_context().run."
        ),
    ),
    "autogen.download": (
        "openaipublic.blob.core.windows.net",
        "a token counter wanted to download its vocabulary",
        (
            "TokenLimitedChatCompletionContext counts with tiktoken, which fetches its vocabulary and "
            "knows no model of yours: use agl_autogen.PromptBudgetContext."
        ),
    ),
}
"""By check: words in the failure's message, the cause, and the fix."""
_TOOL_SUMMARY: Final = "ToolCallSummaryMessage"
_ASKED_FOR_TOOLS: Final = "function_calls"


def pitfalls(records: Sequence[AttemptRecord], config: Any) -> Iterator[Finding]:
    """Check the recorded attempts; yield nothing if AutoGen recorded no spans."""
    del config
    ours = records_from(records, FRAMEWORK)
    if not ours:
        return
    spans = [span for record in ours for span in record.spans if _is_ours(span)]
    yield _unsent(ours)
    yield _tool_results(spans)
    yield _failed_tools(spans)
    yield _thoughts(spans)
    yield _selector(ours)
    yield from _failures(ours)


def _is_ours(span: Span) -> bool:
    return is_from(span, FRAMEWORK)


def _unsent(records: Sequence[AttemptRecord]) -> Finding:
    """Check for cached or replayed answers: they have no tokens, and all attempts get the same."""
    answered = sent = 0
    for record in records:
        runs = {span.agent_run_id: span for span in record.spans if ANSWERS in span.attributes}
        answered += sum(span.attributes[ANSWERS] for span in runs.values())
        sent += sum(
            span.kind is SpanKind.LLM and span.call is None and span.agent_run_id in runs
            for span in record.spans
        )
    unsent = max(answered - sent, 0)
    return Finding.of(
        "autogen.unsent",
        "error" if unsent else "ok",
        f"Agents got {answered} answers of models, {unsent} of them without a request.",
        fix="Take ChatCompletionCache and ReplayChatCompletionClient out for training: what they "
        "answer has no tokens.",
        figures={"answers": answered, "unsent": unsent},
    )


def _tool_results(spans: Sequence[Span]) -> Finding:
    """Check for turns that end with a tool's result, as by default: no model has read it."""
    ended = [span for span in spans if span.attributes.get(RESPONSE) == _TOOL_SUMMARY]
    names = sorted({span.agent for span in ended if span.agent})
    return Finding.of(
        "autogen.tool_results",
        "warning" if ended else "ok",
        f"{len(ended)} turns of {', '.join(map(repr, names))} ended with a tool's result, which no "
        f"model of theirs has read."
        if ended
        else "No turn ended with a tool's result.",
        fix="Give the agent max_tool_iterations above 1 or reflect_on_tool_use=True, if it is to "
        "answer with words of its own.",
        figures={"turns": len(ended), "agents": names},
    )


def _failed_tools(spans: Sequence[Span]) -> Finding:
    """Check for failed tools: AutoGen gives the exception to the model and continues."""
    return failed_tools(
        spans,
        FRAMEWORK,
        check="autogen.failed_tools",
        fix="The model gets the exception's message and the turn continues: fix the tools, or let "
        "the reward take such turns for what they are.",
    )


def _thoughts(spans: Sequence[Span]) -> Finding:
    """Check for thoughts that AutoGen removes: the next prompt does not continue such an answer."""
    cut = [
        span
        for span in spans
        if semconv.AGL_THOUGHT in span.attributes
        # Text next to a tool call is also recorded as a thought, but stays in the history.
        and _ASKED_FOR_TOOLS not in span.attributes.get(semconv.GEN_AI_RESPONSE_FINISH_REASONS, ())
    ]
    return Finding.of(
        "autogen.thoughts",
        "warning" if cut else "ok",
        f"AutoGen took the thoughts out of {len(cut)} answers; each later turn begins a new "
        f"trajectory."
        if cut
        else "AutoGen took no thoughts out of an answer.",
        fix="That is how such models are used and no harm to one-turn agents. Where turns should "
        "join, give model_info another family than R1: answers then stay as they were sampled.",
        figures={"calls": len(cut)},
    )


def _selector(records: Sequence[AttemptRecord]) -> Finding:
    """Check for selectors that are called again, because their model did not name one agent.

    After the last try AutoGen takes the previous speaker or the first agent.
    """
    runs = asked = 0
    for record in records:
        calls = [
            span.agent_run_id
            for span in record.spans
            if span.kind is SpanKind.LLM and span.call is None and span.agent == SELECTOR
        ]
        runs += len(set(calls))
        asked += len(calls)
    again = asked - runs
    return Finding.of(
        "autogen.selector",
        "warning" if again else "ok",
        f"The selector chose {runs} times and was asked again {again} times, because it did not "
        f"name exactly one agent.",
        fix="Serve @selector with a model that follows its prompt, or choose the next speaker with "
        "selector_func: after max_selector_attempts AutoGen takes the last speaker or the first.",
        figures={"choices": runs, "again": again},
    )


def _failures(records: Sequence[AttemptRecord]) -> Iterator[Finding]:
    for check, (words, cause, fix) in _FAILURES.items():
        yield from failures_saying(words, records, check=check, cause=cause, fix=fix)

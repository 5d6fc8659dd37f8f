"""Checks of ``agl doctor`` for common errors with LangChain and LangGraph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from agl_checks import CLOSED_LOOP, failed_tools, failures_saying, is_from
from langchain_core.globals import get_llm_cache

from agl_core.interfaces import AttemptRecord
from agl_core.types import Finding, Span, SpanKind
from agl_langchain._runs import FRAMEWORK

_INNER_NODES: Final = frozenset({"agent", "model", "call_model"})
"""Names of the node that calls the model in prebuilt agents."""


def pitfalls(records: Sequence[AttemptRecord], config: Any) -> Iterator[Finding]:
    """Check the recorded attempts; without LangChain spans, check only for a cache."""
    del config
    spans = [span for record in records for span in record.spans if _is_ours(span)]
    if spans or get_llm_cache() is not None:
        yield _cached(spans)
    if not spans:
        return
    yield _unnamed(spans)
    yield _in_tools(spans)
    yield _failed_tools(spans)
    yield from _closed_loop(records)


def _is_ours(span: Span) -> bool:
    return is_from(span, FRAMEWORK)


def _cached(spans: Sequence[Span]) -> Finding:
    """Check for caches: a cached answer has no tokens, and all attempts of a task get the same."""
    cache = get_llm_cache()
    unsent = sum(
        span.kind is SpanKind.LLM and span.call_id is None and span.status == "ok" for span in spans
    )
    says = f"the cache {type(cache).__name__} is on" if cache is not None else "no cache is on"
    return Finding.of(
        "langchain.cache",
        "error" if cache is not None or unsent else "ok",
        f"LangChain: {says}; {unsent} model calls were answered without a request.",
        fix="Switch it off for training: langchain_core.globals.set_llm_cache(None), and cache=False "
        "for models that have one of their own. A cached answer has no tokens.",
        figures={"cache": type(cache).__name__ if cache is not None else None, "unsent": unsent},
    )


def _unnamed(spans: Sequence[Span]) -> Finding:
    """Check for unnamed agents: all of them get the name of the same inner node."""
    names = sorted({span.agent for span in spans if span.agent in _INNER_NODES})
    return Finding.of(
        "langchain.names",
        "warning" if names else "ok",
        f"Agents are named after inner nodes of unnamed agents: {', '.join(map(repr, names))}."
        if names
        else "No agent is named after an inner node.",
        fix="Name each agent, create_agent(..., name='writer'), so that they can be distinguished.",
        figures={"names": names},
    )


def _in_tools(spans: Sequence[Span]) -> Finding:
    """Check for model calls inside tools without an agent: a tool's agent needs its own name."""
    by_id = {span.id: span for span in spans}
    lost = [s for s in spans if s.kind is SpanKind.LLM and not s.agent and _below_tool(s, by_id)]
    return Finding.of(
        "langchain.tools",
        "warning" if lost else "ok",
        f"{len(lost)} model calls inside tools have no agent."
        if lost
        else "No model call inside a tool has no agent.",
        fix="Name the agent inside the tool, create_agent(..., name=...) or agl.agent_scope(name), "
        "and pass the tool's config on to it: agent.invoke(x, config).",
        figures={"calls": len(lost)},
    )


def _failed_tools(spans: Sequence[Span]) -> Finding:
    """Check for failed tools: a `ToolNode` gives errors that it handles to the model and continues.

    By default it handles wrong arguments.
    """
    return failed_tools(
        spans,
        FRAMEWORK,
        check="langchain.failed_tools",
        fix="The model gets the error where the ToolNode handles it, and the graph continues: fix "
        "the tools and what their descriptions promise, or ToolNode(..., handle_tool_errors=False).",
    )


def _below_tool(span: Span, by_id: Mapping[str, Span]) -> bool:
    above, left = by_id.get(span.parent_id or ""), len(by_id)
    while above is not None and left:
        if above.kind is SpanKind.TOOL:
            return True
        above, left = by_id.get(above.parent_id or ""), left - 1
    return False


def _closed_loop(records: Sequence[AttemptRecord]) -> Iterator[Finding]:
    """Check for closed event loops: all `ChatOpenAI` share one async client, bound to one loop."""
    return failures_saying(
        CLOSED_LOOP,
        records,
        check="langchain.loop",
        cause="the client's event loop is closed",
        fix="Make the agent function async instead of calling asyncio.run in it, or give each "
        "model http_async_client=openai.DefaultAsyncHttpxClient().",
    )

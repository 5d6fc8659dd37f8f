"""Record agents' replies, and the model calls in them that are not the agent's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from agl_agentscope._spans import FRAMEWORK, TRACER
from agl_agentscope._usage import CLOCK, FOLDS, INTERRUPTED, PLAN, SHARED, ReplyingAgents
from agl_core.tracing import SpanScope, active, guarded, run_as

Live = Callable[[], bool]
Function = Callable[..., Any]
Prepare = Callable[[Any], None]

_INTERRUPTION: Final = "_is_interrupted"
"""Key in a message's metadata by which the framework marks a cancelled reply."""
_FOLDING: Final = "MultiAgentFormatter"
"""Suffix of the names of formatters that write the conversation into one message."""


class Replies:
    """Records `AgentBase.__call__`, also of agents that share a class, a task or an object."""

    def __init__(self, prepare: Prepare) -> None:
        """Record replies.

        Args:
            prepare: Called with each agent that is about to reply.
        """
        self._prepare = prepare
        self._usage = ReplyingAgents()

    def wrap(self, original: Function, live: Live) -> Function:
        async def call(agent: Any, *args: Any, **kwargs: Any) -> Any:
            span = self._open(agent) if live() else None
            if span is None:
                return await original(agent, *args, **kwargs)
            try:
                message = await span.run(lambda: original(agent, *args, **kwargs))
            finally:
                self._usage.leave(agent)
            self._look_back(agent, span, message)
            span.end()
            return message

        return call

    @guarded(FRAMEWORK)
    def _open(self, agent: Any) -> SpanScope | None:
        context = active()
        if context is None:
            return None
        name = getattr(agent, "name", None)
        span = TRACER.open(context.recorder, TRACER.agent(str(name) if name else None))
        if wrong := self._usage.enter(agent, context, remembers=_remembers(agent)):
            span.set_attributes({SHARED: wrong})
        formatter = getattr(agent, "formatter", None)
        # PromptBudgetFormatter has the formatter that it wraps as its `formatter`.
        folding = type(getattr(formatter, "formatter", formatter)).__name__.endswith(_FOLDING)
        span.set_attributes({FOLDS: folding})
        self._look_at_plan(agent, span)
        self._prepare(agent)
        return span

    def _look_at_plan(self, agent: Any, span: SpanScope) -> None:
        """Mark a reply with a plan: its hint has the times when parts were made and finished."""
        notebook = getattr(agent, "plan_notebook", None)
        if notebook is not None and notebook.current_plan is not None:
            span.set_attributes({CLOCK: PLAN})
            self._usage.warn_of_clock(
                agent, "give PlanNotebook(plan_to_hint=...) a function that leaves the times out"
            )

    @guarded(FRAMEWORK)
    def _look_back(self, agent: Any, span: SpanScope, message: Any) -> None:
        self._look_at_plan(agent, span)
        metadata = getattr(message, "metadata", None)
        interrupted = isinstance(metadata, dict) and _INTERRUPTION in metadata
        span.set_attributes({INTERRUPTED: interrupted})
        if interrupted:
            span.end(failed="cancelled; the framework answered with a message of its own")


def said_by(name: str) -> Callable[[Function, Live], Function]:
    """Return a wrapper that records a function's model calls under the reserved name `name`."""

    def wrap(original: Function, live: Live) -> Function:
        async def call(*args: Any, **kwargs: Any) -> Any:
            context = active() if live() else None
            if context is None or TRACER.speaker() is None:
                return await original(*args, **kwargs)
            return await run_as(context.recorder, name, lambda: original(*args, **kwargs))

        return call

    return wrap


def _remembers(agent: Any) -> bool:
    """Return whether the agent's memory has content; one without ``content`` counts as full."""
    memory = getattr(agent, "memory", None)
    content: Any = getattr(memory, "content", None)
    return memory is not None if content is None else bool(content)

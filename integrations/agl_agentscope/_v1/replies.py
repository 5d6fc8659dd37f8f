"""What an agent's reply is made of: the reply, and what others say in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from agl_agentscope._spans import FRAMEWORK, TRACER
from agl_agentscope._usage import CLOCK, FOLDS, INTERRUPTED, PLAN, SHARED, Usage
from agl_core.tracing import SpanScope, active, guarded, run_as

Live = Callable[[], bool]
Function = Callable[..., Any]
Prepare = Callable[[Any], None]

_INTERRUPTION: Final = "_is_interrupted"
"""Key of a message's metadata by which the framework says that a reply was cancelled."""
_FOLDING: Final = "MultiAgentFormatter"
"""Ending of the formatters that write the conversation into one message."""


class Replies:
    """Records what `AgentBase.__call__` does, whichever agents share a class, a task or an object."""

    def __init__(self, prepare: Prepare) -> None:
        """Record replies.

        Args:
            prepare: Called with each agent that is about to reply.
        """
        self._prepare = prepare
        self._usage = Usage()

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
        # PromptBudgetFormatter has the one that it cuts as its `formatter`.
        folding = type(getattr(formatter, "formatter", formatter)).__name__.endswith(_FOLDING)
        span.set_attributes({FOLDS: folding})
        self._look_at_plan(agent, span)
        self._prepare(agent)
        return span

    def _look_at_plan(self, agent: Any, span: SpanScope) -> None:
        """A plan's hint says when each of its parts was made and finished."""
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
    """A wrapper of functions that ask a model in a reply, but not for the agent's own answer."""

    def wrap(original: Function, live: Live) -> Function:
        async def call(*args: Any, **kwargs: Any) -> Any:
            context = active() if live() else None
            if context is None or TRACER.speaker() is None:
                return await original(*args, **kwargs)
            return await run_as(context.recorder, name, lambda: original(*args, **kwargs))

        return call

    return wrap


def _remembers(agent: Any) -> bool:
    """Whether the agent has anything in its memory; one that is kept elsewhere counts as full."""
    memory = getattr(agent, "memory", None)
    content: Any = getattr(memory, "content", None)
    return memory is not None if content is None else bool(content)

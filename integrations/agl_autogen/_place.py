"""Where code of AutoGen stands in an attempt: in which agent's turn, in which message's handling."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from agl_autogen import _handling
from agl_autogen._work import FRAMEWORK
from agl_core.tracing import AttemptContext, current_scope
from agl_core.types import Scope

if TYPE_CHECKING:
    from agl_autogen._agents import AgentRun


class Place:
    """What is open in one attempt. Its turns may run in several tasks and threads."""

    def __init__(self) -> None:
        self._runs: dict[str, AgentRun] = {}
        """Open turns of agents by the id of their span."""

    @classmethod
    def of(cls, context: AttemptContext) -> Place:
        """The attempt's, made and entered as the attempt's locator on first use."""
        found = context.locators.get(FRAMEWORK)
        if found is None:
            found = context.locators.setdefault(FRAMEWORK, cls())
        return cast("Place", found)

    def __call__(self, opened: Scope | None) -> Scope | None:
        """From the scope opened here to the innermost one, with the agent that handles a message."""
        handling = _handling.here()
        return (handling.scope(opened) if handling is not None else None) or opened

    @property
    def run(self) -> AgentRun | None:
        """The turn whose agent speaks here; None in a tool, and for agents of other frameworks."""
        scope = current_scope()
        while scope is not None and scope.kind in ("call", "operation"):
            scope = scope.parent
        return self._runs.get(scope.span_id) if scope is not None else None

    def enter(self, run: AgentRun) -> None:
        self._runs[run.scope.span_id] = run

    def leave(self, run: AgentRun) -> None:
        self._runs.pop(run.scope.span_id, None)

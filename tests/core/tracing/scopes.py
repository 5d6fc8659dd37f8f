"""Scopes without a span, opened and closed one by one."""

from __future__ import annotations

from agl_core.tracing._scopes import CURRENT, close_scope, current_scope, inherited, swap_current
from agl_core.types import Scope

__all__ = ["close_scope", "open_scope"]


def open_scope(
    kind, *, span_id, agent=None, agent_run_id=None, trainable=True, parent=CURRENT
) -> Scope:
    """Open a scope and make it the current one."""
    outer = current_scope() if parent is CURRENT else parent
    speaks = inherited(outer, kind, span_id, agent, agent_run_id, trainable)
    scope = Scope(kind, span_id, *speaks, outer)
    swap_current(scope)
    return scope

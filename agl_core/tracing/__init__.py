"""Who speaks, and what belongs to what: scopes, spans, and the identity on every request.

Reading order: `context` (which attempt, which agent), `recorder` (its spans), `emit` and `scoped`
(what user code says), `wire` (what requests carry), `attachment` (switching it all on).
"""

from agl_core.tracing.attachment import Attachment, attach
from agl_core.tracing.context import (
    AttemptContext,
    active,
    close_scope,
    current,
    current_scope,
    enter,
    open_scope,
    opened_here,
    origins_of,
    resource,
)
from agl_core.tracing.emit import (
    alias,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    emit_tool_call,
    reward_value,
    trace,
)
from agl_core.tracing.guard import guarded
from agl_core.tracing.inheritance import child_environment
from agl_core.tracing.recorder import Recorder
from agl_core.tracing.scoped import Scoped, agent_scope, operation
from agl_core.tracing.values import bounded

__all__ = [
    "Attachment",
    "AttemptContext",
    "Recorder",
    "Scoped",
    "active",
    "agent_scope",
    "alias",
    "attach",
    "bounded",
    "child_environment",
    "close_scope",
    "current",
    "current_scope",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "emit_tool_call",
    "enter",
    "guarded",
    "open_scope",
    "opened_here",
    "operation",
    "origins_of",
    "resource",
    "reward_value",
    "trace",
]

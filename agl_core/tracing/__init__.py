"""Scopes, spans, and the identity headers of every model request.

Reading order: `_scopes` (the current scope), `_recorder` (an attempt's spans), `_context` (the
current attempt), `_spans` (a span with its scope), `_functions` (for user code),
`_wire` (identity headers), `_wrapping` (code inside user code), `_attachment` (attaching to a
process).
"""

from agl_core.tracing._attachment import (
    Attachment,
    attach,
    check_request,
    child_environment,
    request_scope,
)
from agl_core.tracing._calls import call_scope
from agl_core.tracing._context import (
    AttemptContext,
    Strays,
    Tables,
    active,
    counting_strays,
    current,
    enter,
    origin_key,
    origins_of,
    resource,
)
from agl_core.tracing._functions import (
    agent_scope,
    alias,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    emit_tool_call,
    operation,
    reward_value,
    trace,
)
from agl_core.tracing._recorder import Recorder
from agl_core.tracing._scopes import current_scope, scope_around
from agl_core.tracing._spans import (
    UNNAMED,
    ScopeFrame,
    SpanScope,
    SpanStart,
    Tracer,
    handoff,
    open_span,
    run_as,
    tool_attributes,
)
from agl_core.tracing._values import bounded, describe, reason, represent, users_traceback
from agl_core.tracing._wrapping import Patch, Wrap, guarded

__all__ = [
    "UNNAMED",
    "Attachment",
    "AttemptContext",
    "Patch",
    "Recorder",
    "ScopeFrame",
    "SpanScope",
    "SpanStart",
    "Strays",
    "Tables",
    "Tracer",
    "Wrap",
    "active",
    "agent_scope",
    "alias",
    "attach",
    "bounded",
    "call_scope",
    "check_request",
    "child_environment",
    "counting_strays",
    "current",
    "current_scope",
    "describe",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "emit_tool_call",
    "enter",
    "guarded",
    "handoff",
    "open_span",
    "operation",
    "origin_key",
    "origins_of",
    "reason",
    "represent",
    "request_scope",
    "resource",
    "reward_value",
    "run_as",
    "scope_around",
    "tool_attributes",
    "trace",
    "users_traceback",
]

"""Which agent speaks and what belongs to what: scopes, spans, and the identity on every request.

Reading order: `_scopes` (which scope is current), `_recorder` (an attempt's spans), `_context` (which
attempt runs), `_pieces` (a span with its scope), `_emit` and `_scoped` (what user code records),
`_wire` (what requests carry), `_attachment` (attaching all of it to a process).
"""

from agl_core.tracing._attachment import Attachment, attach, child_environment
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
from agl_core.tracing._emit import (
    alias,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    emit_tool_call,
    reward_value,
    trace,
)
from agl_core.tracing._guard import guarded
from agl_core.tracing._patch import Patch, Wrap
from agl_core.tracing._pieces import UNNAMED, Opening, Piece, Pieces, spoken_by
from agl_core.tracing._recorder import Recorder
from agl_core.tracing._scoped import Scoped, agent_scope, operation
from agl_core.tracing._scopes import (
    ScopeFrame,
    close_scope,
    current_scope,
    make_current,
    open_scope,
    opened_here,
    scope_around,
    scope_in,
)
from agl_core.tracing._values import bounded, describe, represent, users_traceback

__all__ = [
    "UNNAMED",
    "Attachment",
    "AttemptContext",
    "Opening",
    "Patch",
    "Piece",
    "Pieces",
    "Recorder",
    "ScopeFrame",
    "Scoped",
    "Strays",
    "Tables",
    "Wrap",
    "active",
    "agent_scope",
    "alias",
    "attach",
    "bounded",
    "child_environment",
    "close_scope",
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
    "make_current",
    "open_scope",
    "opened_here",
    "operation",
    "origin_key",
    "origins_of",
    "represent",
    "resource",
    "reward_value",
    "scope_around",
    "scope_in",
    "spoken_by",
    "trace",
    "users_traceback",
]

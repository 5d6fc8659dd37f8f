"""Scopes, spans, and the identity headers of every model request.

Reading order: `_scopes` (the current scope), `_recorder` (an attempt's spans), `_context` (the
current attempt), `_spans` (a span with its scope), `_functions` (for user code),
`_wire` (identity headers), `_wrapping` (code inside user code), `_attachment` (attaching to a
process).
"""

from agl_core.tracing._attachment import Attachment as Attachment
from agl_core.tracing._attachment import attach as attach
from agl_core.tracing._attachment import check_request as check_request
from agl_core.tracing._attachment import child_environment as child_environment
from agl_core.tracing._attachment import request_scope as request_scope
from agl_core.tracing._calls import call_scope as call_scope
from agl_core.tracing._context import AttemptContext as AttemptContext
from agl_core.tracing._context import Strays as Strays
from agl_core.tracing._context import Tables as Tables
from agl_core.tracing._context import active as active
from agl_core.tracing._context import counting_strays as counting_strays
from agl_core.tracing._context import current as current
from agl_core.tracing._context import enter as enter
from agl_core.tracing._context import origin_key as origin_key
from agl_core.tracing._context import origins_of as origins_of
from agl_core.tracing._context import resource as resource
from agl_core.tracing._functions import agent_scope as agent_scope
from agl_core.tracing._functions import alias as alias
from agl_core.tracing._functions import emit_exception as emit_exception
from agl_core.tracing._functions import emit_message as emit_message
from agl_core.tracing._functions import emit_object as emit_object
from agl_core.tracing._functions import emit_reward as emit_reward
from agl_core.tracing._functions import emit_tool_call as emit_tool_call
from agl_core.tracing._functions import operation as operation
from agl_core.tracing._functions import reward_value as reward_value
from agl_core.tracing._functions import trace as trace
from agl_core.tracing._recorder import Recorder as Recorder
from agl_core.tracing._scopes import current_scope as current_scope
from agl_core.tracing._scopes import scope_around as scope_around
from agl_core.tracing._spans import UNNAMED as UNNAMED
from agl_core.tracing._spans import ScopeFrame as ScopeFrame
from agl_core.tracing._spans import SpanScope as SpanScope
from agl_core.tracing._spans import SpanStart as SpanStart
from agl_core.tracing._spans import Tracer as Tracer
from agl_core.tracing._spans import handoff as handoff
from agl_core.tracing._spans import open_span as open_span
from agl_core.tracing._spans import run_as as run_as
from agl_core.tracing._spans import tool_attributes as tool_attributes
from agl_core.tracing._values import bounded as bounded
from agl_core.tracing._values import describe as describe
from agl_core.tracing._values import reason as reason
from agl_core.tracing._values import represent as represent
from agl_core.tracing._values import users_traceback as users_traceback
from agl_core.tracing._wrapping import Patch as Patch
from agl_core.tracing._wrapping import Wrap as Wrap
from agl_core.tracing._wrapping import guarded as guarded

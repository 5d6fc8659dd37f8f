"""The gateway: an OpenAI-compatible proxy that records exactly which tokens were sampled.

Reading order: `_app` (the server), `_endpoints` (its paths), `_routing` (the attempt and the policy
of a request), `_proxy` and `_exchange` (one call), `_chat`, `_chat_answer`, `_tool_calls` and
`_stream` (the wire format), `_translation` (dialects), `_capture` and `_recording` (the records of
calls), `_replay` (recorded answers for a retry), `probe` (a backend's capabilities).
"""

from agl_core.gateway._app import GatewayOptions as GatewayOptions
from agl_core.gateway._app import GatewayServer as GatewayServer
from agl_core.gateway._chat import ChatRequest as ChatRequest
from agl_core.gateway._chat import RequestChanges as RequestChanges
from agl_core.gateway._chat_answer import Payload as Payload
from agl_core.gateway._recording import RecordingOptions as RecordingOptions
from agl_core.gateway._routing import Route as Route
from agl_core.gateway._translation import AnswerReader as AnswerReader
from agl_core.gateway._translation import translations as translations

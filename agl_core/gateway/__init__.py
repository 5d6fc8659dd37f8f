"""The gateway: an OpenAI-compatible proxy that records exactly which tokens were sampled.

Reading order: `app` (the server), `endpoints` (its paths), `routing` (the attempt and the policy of
a request), `proxy` and `exchange` (one call), `dialects` and `stream` (wire formats), `capture` and
`recording` (the records of calls), `replay` (recorded answers for a retry), `tokenize` (the number
of tokens in a prompt), `probe` (a backend's capabilities).
"""

from agl_core.gateway.app import GatewayOptions, GatewayServer
from agl_core.gateway.dialects.chat_answer import Payload
from agl_core.gateway.dialects.translation import AnswerReader, translations
from agl_core.gateway.recording import RecordingOptions
from agl_core.gateway.routing import Route

__all__ = [
    "AnswerReader",
    "GatewayOptions",
    "GatewayServer",
    "Payload",
    "RecordingOptions",
    "Route",
    "translations",
]

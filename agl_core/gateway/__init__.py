"""The gateway: an OpenAI-compatible proxy that records exactly which tokens were sampled.

Reading order: `app` (the server), `endpoints` (what it serves), `routing` (who calls, which policy
serves), `proxy` and `exchange` (one call), `dialects` and `stream` (what is on the wire), `capture`
and `recording` (what is kept), `replay` (answers from the record), `tokenize` (how long a prompt
would be), `probe` (what a backend can give); `control` and `remote` (a gateway in another process).
"""

from agl_core.gateway.app import GatewayOptions, GatewayServer
from agl_core.gateway.control import GatewayControl
from agl_core.gateway.dialects.chat_answer import Payload
from agl_core.gateway.dialects.translation import AnswerReader, translating
from agl_core.gateway.recording import RecordingOptions
from agl_core.gateway.remote import RemoteGateway, RemoteOptions

__all__ = [
    "AnswerReader",
    "GatewayControl",
    "GatewayOptions",
    "GatewayServer",
    "Payload",
    "RecordingOptions",
    "RemoteGateway",
    "RemoteOptions",
    "translating",
]

"""Spans as OpenTelemetry's OTLP and back: pure functions, and the sender to a collector.

`values` has the typed attribute values, `encode` and `decode` the two directions in the JSON form,
`protobuf` reads the binary form into the JSON one, `send` posts to a collector. Token ids never
become attributes.
"""

from agl_core.store.otlp.decode import Decoded, Sender, decode
from agl_core.store.otlp.encode import encode_attempt, request

__all__ = ["Decoded", "Sender", "decode", "encode_attempt", "request"]

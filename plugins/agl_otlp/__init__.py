"""Spans as OpenTelemetry's OTLP and back: pure functions, the sender to a collector, the ingest.

`values` has the typed attribute values, `encode` and `decode` the two directions in the JSON form,
`protobuf` reads the binary form into the JSON one, `send` posts to a collector, `ingest` is the
gateway's route ``/v1/traces``. Token ids never become attributes.
"""

"""OpenTelemetry's OTLP: export of attempts as traces, and ingest of spans.

`values` converts typed attribute values, `encode` and `decode` convert spans to and from the JSON
form, `protobuf` reads the binary form, `send` posts to a collector, `ingest` serves the gateway's
route ``/v1/traces``. Token ids never become attributes.
"""

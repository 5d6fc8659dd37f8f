"""OpenTelemetry's OTLP: export of attempts as traces, and ingest of spans.

`_values` converts typed attribute values, `_encode` and `_decode` convert spans to and from the
JSON form, `_protobuf` reads the binary form, `_send` posts to a collector, `_ingest` serves the
gateway's route ``/v1/traces``. Token ids never become attributes.
"""

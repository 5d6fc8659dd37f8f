"""Spans as mappings with all fields, for JSON that people read."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from agl_core.types import Span


def all_fields(span: Span) -> dict[str, Any]:
    """Return a span's fields; msgspec leaves out those of the default values."""
    fields, call = asdict(span), span.call
    if call is not None:
        choices = [asdict(choice) for choice in call.choices]
        fields["call"] = asdict(call) | {"sampling": asdict(call.sampling), "choices": choices}
    return fields

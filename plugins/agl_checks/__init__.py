"""Findings that the checks of several integrations share, such as failed tools.

A library for checks of ``agl doctor``; it registers no hooks.
"""

from agl_checks._findings import (
    CLOSED_LOOP,
    failed_tools,
    failures_saying,
    is_from,
    records_from,
)

__all__ = ["CLOSED_LOOP", "failed_tools", "failures_saying", "is_from", "records_from"]

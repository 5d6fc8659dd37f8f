"""Spans and reserved names of agents, for both versions."""

from __future__ import annotations

from typing import Final

from agl_core.tracing import Tracer

FRAMEWORK: Final = "agentscope"
TRACER: Final = Tracer(FRAMEWORK)
CONTEXT: Final = "@context"
"""Agent of the calls in an agent's reply that are not its own model calls; never trained."""
SUMMARIZER: Final = "@summarizer"
"""Agent of the calls that summarize an agent's context; never trained."""

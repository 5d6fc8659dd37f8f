"""Pieces of the framework's work, and who speaks in it besides agents: the same for both versions."""

from __future__ import annotations

from typing import Final

from agl_core.tracing import Pieces

FRAMEWORK: Final = "agentscope"
PIECES: Final = Pieces(FRAMEWORK)
CONTEXT: Final = "@context"
"""Makes the calls in an agent's reply that are not its own model calls; never trained."""
SUMMARIZER: Final = "@summarizer"
"""Asks the model for summaries of an agent's context; never trained."""

"""Pieces of the framework's work, in either version of it."""

from __future__ import annotations

from typing import Final

from agl_core.tracing.pieces import Opening, Piece, Pieces, spoken_by

__all__ = [
    "CONTEXT",
    "FRAMEWORK",
    "SUMMARIZER",
    "Opening",
    "Piece",
    "is_seen",
    "open_piece",
    "reply_opening",
    "speaker",
    "spoken_by",
    "tool_opening",
]

FRAMEWORK: Final = "agentscope"
CONTEXT: Final = "@context"
"""Makes the calls in an agent's reply that are not its own model calls; never trained."""
SUMMARIZER: Final = "@summarizer"
"""Asks the model for summaries of an agent's context; never trained."""

_PIECES: Final = Pieces(FRAMEWORK)
is_seen = _PIECES.is_seen
open_piece = _PIECES.open
reply_opening = _PIECES.reply
speaker = _PIECES.speaker
tool_opening = _PIECES.tool

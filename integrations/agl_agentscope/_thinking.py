"""Split an answer's text at think tags, for both versions."""

from __future__ import annotations

from collections.abc import Sequence

from agl_core.thinking import DEFAULT_TAGS, Part, split_thinking
from agl_core.tracing import active


def tags() -> Sequence[str]:
    """Return the run's thinking tags; outside a rollout the default ones."""
    context = active()
    return context.rollout.thinking_tags if context is not None else DEFAULT_TAGS


def split_text(text: str, tag_names: Sequence[str]) -> tuple[Part, ...] | None:
    """Return the parts of a text without white space around the tags; None if it has no tags."""
    parts = split_thinking(text, tags=tag_names)
    if not parts or parts == (Part("text", text),):
        return None
    return tuple(Part(part.kind, part.text.strip()) for part in parts)

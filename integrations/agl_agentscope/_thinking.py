"""An answer's text in think tags, split: the same for both versions."""

from __future__ import annotations

from collections.abc import Sequence

from agl_core.thinking import DEFAULT_TAGS, Part, split_thinking
from agl_core.tracing import active


def tags() -> Sequence[str]:
    """The thinking tags of the run, the usual ones outside of a rollout."""
    context = active()
    return context.rollout.thinking_tags if context is not None else DEFAULT_TAGS


def split_text(text: str, tag_names: Sequence[str]) -> tuple[Part, ...] | None:
    """Parts of a text without the white space around the tags; None where no tag is in it."""
    parts = split_thinking(text, tags=tag_names)
    if not parts or parts == (Part("text", text),):
        return None
    return tuple(Part(part.kind, part.text.strip()) for part in parts)

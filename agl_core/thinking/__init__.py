"""Separation of thinking and text in a model's answer.

Reasoning models write their thinking in tags, ``<think>...</think>``, or their server returns it in
a separate field, ``reasoning`` or ``reasoning_content``. `split_thinking` and, for a streamed
answer, `ThinkParser` turn both into the same parts. The parts are unchanged pieces of the text;
tokens are not used.
"""

from __future__ import annotations

from collections.abc import Sequence

from agl_core.thinking.parser import DEFAULT_TAGS, Part, ThinkParser, mentions, tag_pair

__all__ = ["DEFAULT_TAGS", "Part", "ThinkParser", "split_thinking", "tag_pair", "without_thinking"]


def split_thinking(
    text: str, *, reasoning: str = "", tags: Sequence[str] = DEFAULT_TAGS, opened: bool = False
) -> tuple[Part, ...]:
    """Split a whole answer into its parts, in order; see `ThinkParser`."""
    if not opened and not reasoning and not mentions(text, tags):
        return (Part("text", text),) if text and not text.isspace() else ()
    parser = ThinkParser(tags=tags, opened=opened)
    parser.feed(text, reasoning=reasoning)
    parser.finish()
    return parser.parts


def without_thinking(text: str, *, tags: Sequence[str] = DEFAULT_TAGS) -> str:
    """Return the text of an answer without its thinking."""
    if not mentions(text, tags):
        return text
    return "".join(part.text for part in split_thinking(text, tags=tags) if part.kind == "text")

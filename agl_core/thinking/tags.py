"""Tags that thinking stands between."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agl_core.errors import ConfigError

DEFAULT_TAGS: Final = ("think", "thinking")


def tag_pair(tag: str) -> tuple[str, str]:
    """Opening and closing tag of one entry of `tags`.

    Raises:
        ConfigError: it is neither a name nor two different tags.
    """
    words = tag.split()
    if len(words) == 1 and not set(words[0]) & set("<>/`"):
        return f"<{words[0]}>", f"</{words[0]}>"
    if len(words) != 2 or words[0] == words[1] or "`" in tag:  # noqa: PLR2004
        raise ConfigError(
            f"Thinking tag {tag!r} is not one: give a name, as 'think' for <think>, or the opening "
            f"and the closing tag with a space between them, as '[THINK] [/THINK]'"
        )
    return words[0], words[1]


def mentions(text: str, tags: Iterable[str]) -> bool:
    """Whether any tag occurs at all; mostly none does, and then there is nothing to parse."""
    return any(marker in text for tag in tags for marker in tag_pair(tag))

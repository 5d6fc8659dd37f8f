"""Read the framework's objects as span attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast


def names(agents: Iterable[Any]) -> list[str]:
    """Return the names of agents, each once; the id for an agent without a name."""
    return list(dict.fromkeys(str(getattr(agent, "name", None) or agent.id) for agent in agents))


def result(content: Any) -> Any:
    """Return content as a string if it has only text blocks, else as the framework's blocks."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content
    blocks = cast("Sequence[Any]", content)
    if blocks and all(_type(block) == "text" for block in blocks):
        return "".join(block["text"] for block in blocks)
    return list(blocks)


def received(content: Any) -> Any:
    """Return content as other agents get it: without the sender's thinking blocks."""
    if not isinstance(content, list):
        return content
    blocks = cast("list[Any]", content)
    return result([block for block in blocks if _type(block) != "thinking"])


def _type(block: Any) -> Any:
    return cast("Mapping[str, Any]", block).get("type") if isinstance(block, Mapping) else None

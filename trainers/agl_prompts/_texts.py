"""Texts for editors and from editors."""

from __future__ import annotations

from collections.abc import Iterable

from agl_prompts._seen import Seen


def new_text(answer: str) -> str:
    """Return the new prompt in an editor's answer: the content of its only fenced block.

    The thinking before ``</think>`` is ignored. A fence is a line of at least three backticks. If
    several blocks follow each other, the last one counts; a longer fence contains shorter ones.
    Returns "" without a complete block, which `Study.propose` refuses as empty.
    """
    raise NotImplementedError


def describe(
    seen: Seen, *, agents: Iterable[str] = (), max_chars: int = 4000, calls: int = 8
) -> str:
    """Return a result as text for editors: task, expected answer, calls, score and reasons.

    Args:
        seen: The result.
        agents: Names or globs of the agents whose calls are shown; all without any.
        max_chars: Largest number of characters; the middle of long parts is left out.
        calls: Largest number of calls shown, the last ones.
    """
    raise NotImplementedError

"""What the checks of several plugins look for in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from agl_core import semconv
from agl_core.interfaces import AttemptRecord
from agl_core.types import Finding, Span

CLOSED_LOOP: Final = "Event loop is closed"
"""How asyncio words it that an asynchronous client is used on another event loop than its own."""


def is_from(span: Span, framework: str) -> bool:
    """Whether this framework's integration recorded the span."""
    return span.attributes.get(semconv.AGL_FRAMEWORK) == framework


def records_from(records: Sequence[AttemptRecord], framework: str) -> list[AttemptRecord]:
    """The attempts in which the framework took part."""
    return [record for record in records if any(is_from(span, framework) for span in record.spans)]


def failures_saying(
    words: str, records: Sequence[AttemptRecord], *, check: str, cause: str, fix: str
) -> Iterator[Finding]:
    """One error where attempts failed with a message that has these words, else nothing.

    Args:
        words: Part of the message.
        records: Attempts to look at.
        check: As in `Finding`.
        cause: What the words mean, to go on from "failed because".
        fix: As in `Finding`.
    """
    failures = [record.attempt.failure for record in records]
    failed = sum(words in failure.message for failure in failures if failure is not None)
    if failed:
        yield Finding(
            check=check,
            severity="error",
            measured=f"{failed} of {len(records)} attempts failed because {cause}.",
            fix=fix,
            figures={"attempts": failed},
        )

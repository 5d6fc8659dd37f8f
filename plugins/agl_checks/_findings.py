"""What the checks of several integrations look for in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from agl_core import semconv
from agl_core.interfaces import AttemptRecord
from agl_core.types import Finding, Span, SpanKind

CLOSED_LOOP: Final = "Event loop is closed"
"""Text of asyncio's error if an asynchronous client is used on another event loop than its own."""


def is_from(span: Span, framework: str) -> bool:
    """Return whether this framework's integration recorded the span."""
    return span.attributes.get(semconv.AGL_FRAMEWORK) == framework


def records_from(records: Sequence[AttemptRecord], framework: str) -> list[AttemptRecord]:
    """Return the attempts with spans of the framework."""
    return [record for record in records if any(is_from(span, framework) for span in record.spans)]


def failed_tools(spans: Sequence[Span], framework: str, *, check: str, fix: str) -> Finding:
    """Warn about failed tool uses, for a framework that continues after one.

    Args:
        spans: Spans of all attempts.
        framework: The framework of the tools.
        check: As in `Finding`.
        fix: As in `Finding`.
    """
    used = [span for span in spans if span.kind is SpanKind.TOOL and is_from(span, framework)]
    failed = [span for span in used if span.status == "error"]
    names = sorted({span.name for span in failed})
    return Finding.of(
        check,
        "warning" if failed else "ok",
        f"{len(failed)} of {len(used)} tool calls failed ({', '.join(names)}), the first with "
        f"{failed[0].error}"
        if failed
        else f"All of {len(used)} tool calls succeeded.",
        fix=fix,
        figures={"failed": len(failed), "used": len(used), "tools": names},
    )


def failures_saying(
    words: str, records: Sequence[AttemptRecord], *, check: str, cause: str, fix: str
) -> Iterator[Finding]:
    """Yield one error if attempts failed with these words.

    Clients wrap exceptions with their own message; the traceback contains the original one.

    Args:
        words: Part of the message or of the traceback.
        records: Attempts to check.
        check: As in `Finding`.
        cause: Meaning of the words, to follow "failed because".
        fix: As in `Finding`.
    """
    failures = [record.attempt.failure for record in records]
    texts = [f"{each.message}\n{each.traceback}" for each in failures if each is not None]
    failed = sum(words in text for text in texts)
    if failed:
        yield Finding(
            check=check,
            severity="error",
            measured=f"{failed} of {len(records)} attempts failed because {cause}.",
            fix=fix,
            figures={"attempts": failed},
        )

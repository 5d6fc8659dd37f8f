"""Checks of ``agl doctor`` for common errors with the plain OpenAI client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from agl_checks import CLOSED_LOOP, failures_saying

from agl_core import semconv
from agl_core.interfaces import AttemptRecord
from agl_core.types import Finding, ModelCall

_UNSERVED: Final = "unsupported_parameter: "
"""First words of the error in the record of a refused Responses request."""
_UNMARKED: Final = "Aiohttp_openaiException"
"""LiteLLM's name for errors of its provider that sends through aiohttp directly."""
_CONNECTION: Final = ("openai.APIConnectionError", "openai.NotFoundError")


def pitfalls(records: Sequence[AttemptRecord], config: Any) -> Iterator[Finding]:
    """Check attempts; most checks skip those with a framework, whose own checks are more exact."""
    del config
    yield from _unmarked(records)
    plain = [record for record in records if not _framework(record)]
    if not plain:
        return
    calls = [span.call for record in plain for span in record.spans if span.call is not None]
    yield from _retried(calls)
    yield from _refused(calls)
    yield from _elsewhere(plain)
    yield from _closed_loop(plain)


def _framework(record: AttemptRecord) -> bool:
    return any(semconv.AGL_FRAMEWORK in span.attributes for span in record.spans)


def _retried(calls: Sequence[ModelCall]) -> Iterator[Finding]:
    """Check for failed requests that the client repeats silently, twice by default."""
    retried = sorted({call.id for call in calls if call.tries > 1})
    if retried:
        statuses = sorted({call.status_code for call in calls if call.superseded})
        yield Finding(
            check="openai.retries",
            severity="warning",
            measured=f"The client sent {len(retried)} requests again; the first tries ended with "
            f"{', '.join(map(str, statuses)) or 'no status'}.",
            fix="See the backend's log: it is overloaded or failing. max_retries=0 shows such "
            "failures instead of hiding them.",
            figures={"calls": len(retried), "statuses": statuses},
        )


def _refused(calls: Sequence[ModelCall]) -> Iterator[Finding]:
    """Check for refused Responses requests: the gateway has no conversations or hosted tools."""
    refused = [call.error for call in calls if call.error.startswith(_UNSERVED)]
    if refused:
        yield Finding(
            check="openai.responses",
            severity="error",
            measured=f"{len(refused)} of {len(calls)} requests ask for what only OpenAI serves, and "
            f"were refused: {refused[0].removeprefix(_UNSERVED)}",
            fix="Do as the message says. previous_response_id: keep the conversation yourself and "
            "send all of it as input. Hosted tools: give the agent a function that does it.",
            figures={"calls": len(refused)},
        )


def _elsewhere(records: Sequence[AttemptRecord]) -> Iterator[Finding]:
    """Check for clients made before the rollout: they keep the address of that time."""
    lost = [
        record.attempt.failure
        for record in records
        if record.attempt.failure is not None
        and record.attempt.failure.type in _CONNECTION
        and not any(span.call is not None for span in record.spans)
    ]
    if lost:
        yield Finding(
            check="openai.address",
            severity="error",
            measured=f"{len(lost)} of {len(records)} attempts failed with {lost[0].type} and sent "
            f"nothing through the gateway: {lost[0].message}",
            fix="Make the client inside the agent function, where OPENAI_BASE_URL names the "
            "gateway, and use client.chat.completions or client.responses.",
            figures={"attempts": len(lost)},
        )


def _unmarked(records: Sequence[AttemptRecord]) -> Iterator[Finding]:
    """Check for LiteLLM's provider ``aiohttp_openai``, which hides the gateway's error message."""
    return failures_saying(
        _UNMARKED,
        records,
        check="openai.litellm",
        cause="LiteLLM's provider aiohttp_openai sends by aiohttp itself: the gateway refuses its "
        "requests, as nothing in them says whose they are",
        fix="Write openai/<model> instead of aiohttp_openai/<model>: it is as fast, as LiteLLM "
        "sends by httpx over aiohttp.",
    )


def _closed_loop(records: Sequence[AttemptRecord]) -> Iterator[Finding]:
    return failures_saying(
        CLOSED_LOOP,
        records,
        check="openai.loop",
        cause="the client's event loop is closed",
        fix="An AsyncOpenAI belongs to the loop that used it first: make the agent function "
        "async instead of calling asyncio.run in it, or make a client per call of it.",
    )

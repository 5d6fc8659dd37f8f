"""Pitfalls of the plain OpenAI client that ``agl doctor`` looks for in a trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from agl_core import semconv
from agl_core.interfaces import AttemptRecord
from agl_core.plugins.findings import CLOSED_LOOP, failures_saying
from agl_core.types import Finding, ModelCall

_UNSERVED: Final = "unsupported_parameter: "
"""How the record of a refused Responses request begins."""
_UNMARKED: Final = "Aiohttp_openaiException"
"""What LiteLLM calls failures of its provider that sends by aiohttp itself."""
_CONNECTION: Final = ("openai.APIConnectionError", "openai.NotFoundError")


def pitfalls(records: Sequence[AttemptRecord], config: Any) -> Iterator[Finding]:
    """Look at attempts, most often at those without a framework, which knows more of its own."""
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
    """The client repeats a request that failed, twice by default, silently."""
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
    """The Responses API keeps conversations and runs tools at OpenAI; the gateway does not."""
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
    """A client made at import keeps the address that was in the environment then."""
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
    """LiteLLM hides the gateway's own words, which say what is wrong."""
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

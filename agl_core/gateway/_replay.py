"""Answer the calls of a retried attempt from the records of the attempt before it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from agl_core import semconv
from agl_core.clocks import wall
from agl_core.gateway._routing import Route
from agl_core.gateway._stream import DONE, render
from agl_core.interfaces import Backend, Store
from agl_core.types import Attempt, AttemptStatus, Choice, FailureKind, ModelCall, Rollout, Span

RESUME: Final = "resume"
"""Key of `Rollout.metadata`; the value `REPLAY` turns replay on."""
REPLAY: Final = "replay"

_INTERRUPTED: Final = (FailureKind.LOST, FailureKind.ENGINE)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One complete call of the earlier attempt."""

    call: ModelCall
    usage: Mapping[str, int]

    def route(self, route: Route) -> Route:
        """Return a route to this record, with the policy version that sampled it."""
        policy = msgspec.structs.replace(route.policy, version=self.call.policy_version)
        backend = RecordBackend(self, route.upstream_model)
        return Route(policy, backend, self.call.logprobs_mode)


class Replay:
    """Recorded calls of one attempt, each used once, until a call has no record.

    The order of calls of parallel agents varies, so a record is found by agent and request; equal
    requests of one agent get their records in the recorded order. After the first call without a
    record every call goes to the backend, because the attempt then differs from the recorded one.
    """

    def __init__(self, spans: Iterable[Span]) -> None:
        """Select the usable records from the spans of the interrupted attempt."""
        self._records: dict[tuple[str, str], deque[RecordedCall]] = {}
        self._given: dict[str, RecordedCall] = {}
        for span in sorted(_latest(spans), key=lambda span: span.order):
            call = span.call
            assert call is not None
            key = (call.agent, span.attributes.get(semconv.AGL_REQUEST_DIGEST, ""))
            self._records.setdefault(key, deque()).append(RecordedCall(call, _usage(span)))

    def take(
        self, call_id: str, *, agent: str, digest: str, policy: str, capture: bool
    ) -> RecordedCall | None:
        """Return the record for a call; None if the backend has to answer it.

        A retry of the call gets the same record.
        """
        if call_id in self._given:
            return self._given[call_id]
        waiting = self._records.get((agent, digest))
        if not waiting or (waiting[0].call.policy, waiting[0].call.trainable) != (policy, capture):
            self._records.clear()
            return None
        self._given[call_id] = waiting.popleft()
        return self._given[call_id]


def _latest(spans: Iterable[Span]) -> list[Span]:
    """Return the spans of each call's last try, without unusable ones."""
    latest: dict[str, Span] = {}
    for span in spans:
        call = span.call
        if call is None:
            continue
        known = latest.get(call.id)
        if known is None or known.call is None or known.call.tries <= call.tries:
            latest[call.id] = span
    return [span for span in latest.values() if _serves(span)]


def _serves(span: Span) -> bool:
    call = span.call
    answered = call is not None and call.complete and not call.superseded and not call.error
    if call is not None and any(choice.audio for choice in call.choices):
        return False  # the audio itself is not recorded
    return answered and semconv.AGL_REQUEST_DIGEST in span.attributes


def _usage(span: Span) -> dict[str, int]:
    names = {
        "prompt_tokens": semconv.GEN_AI_USAGE_INPUT_TOKENS,
        "completion_tokens": semconv.GEN_AI_USAGE_OUTPUT_TOKENS,
    }
    usage = {name: span.attributes[key] for name, key in names.items() if key in span.attributes}
    return {**usage, "total_tokens": sum(usage.values())} if usage else {}


def resumable(rollout: Rollout) -> bool:
    """Whether a retried attempt of this rollout is answered from records."""
    return rollout.metadata.get(RESUME) == REPLAY


async def find_replay(
    store: Store, rollout: Rollout, attempt: Attempt, unwritten: Sequence[Span]
) -> Replay | None:
    """Return the records of the attempt before, if it was interrupted and the run enables replay.

    Args:
        store: The store with the records.
        rollout: The rollout with all its attempts.
        attempt: The attempt that begins.
        unwritten: Records that are not in the store yet.
    """
    earlier = [each for each in rollout.attempts if each.fence < attempt.fence]
    if not earlier or not resumable(rollout):
        return None
    last = max(earlier, key=lambda each: each.fence)
    kind = last.failure.kind if last.failure is not None else None
    if last.status is not AttemptStatus.LOST and kind not in _INTERRUPTED:
        return None
    spans = await store.spans([rollout.id], attempt_id=last.id)
    known = {span.id for span in spans}
    more = [s for s in unwritten if s.attempt_id == last.id and s.id not in known]
    return Replay([*spans, *more])


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Asked(msgspec.Struct):
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class RecordBackend(Backend):
    """A backend that answers with one recorded call, as a whole or as a stream."""

    def __init__(self, recorded: RecordedCall, model: str) -> None:
        """Answer with `recorded`; `model` is the model's name in answers."""
        self.model = model
        self._recorded = recorded

    async def chat(
        self,
        body: bytes,
        *,
        headers: Mapping[str, str],  # noqa: ARG002
        timeout_s: float,  # noqa: ARG002
    ) -> RecordReply:
        asked = msgspec.json.decode(body, type=_Asked)
        if not asked.stream:
            return RecordReply("application/json", msgspec.json.encode(self._document()))
        options = asked.stream_options
        usage = options is not None and bool(options.include_usage)
        events = [render(msgspec.json.encode(chunk)) for chunk in self._chunks(usage=usage)]
        return RecordReply("text/event-stream", b"".join([*events, render(DONE)]))

    def _envelope(self, kind: str) -> dict[str, Any]:
        created = int(wall())
        response_id = self._recorded.call.response_id
        return {"id": response_id, "object": kind, "created": created, "model": self.model}

    def _document(self) -> dict[str, Any]:
        document = self._envelope("chat.completion")
        document["choices"] = [
            _row(choice) | {"message": _message(choice)} for choice in self._recorded.call.choices
        ]
        if self._recorded.usage:
            document["usage"] = self._recorded.usage
        return document | self._prompt()

    def _chunks(self, *, usage: bool) -> list[dict[str, Any]]:
        """Return two chunks for each choice: one with the role, one with the whole content."""
        base, choices = self._envelope("chat.completion.chunk"), self._recorded.call.choices
        opening = [
            {"index": choice.index, "delta": {"role": "assistant"}, "finish_reason": None}
            for choice in choices
        ]
        whole = [_row(choice) | {"delta": _delta(choice)} for choice in choices]
        chunks = [base | {"choices": [row]} for row in (*opening, *whole)]
        if chunks:
            chunks[0] |= self._prompt()
        if usage and self._recorded.usage:
            chunks.append(base | {"choices": [], "usage": self._recorded.usage})
        return chunks

    def _prompt(self) -> dict[str, Any]:
        ids = self._recorded.call.prompt_token_ids
        return {"prompt_token_ids": ids.tolist()} if ids else {}


class RecordReply:
    """A backend's reply whose body is known in advance."""

    status = 200

    def __init__(self, kind: str, content: bytes) -> None:
        self.headers: Mapping[str, str] = {"content-type": kind}
        self._content = content

    async def body(self) -> AsyncIterator[bytes]:
        yield self._content

    async def close(self) -> None:
        """Do nothing: a recorded reply holds no connection."""


def _row(choice: Choice) -> dict[str, Any]:
    """Return a choice without its message; records do not hold the texts of single tokens."""
    row: dict[str, Any] = {"index": choice.index, "finish_reason": choice.finish_reason}
    row["logprobs"] = None
    if choice.logprobs:
        entries: list[dict[str, Any]] = [
            {"token": "", "logprob": value, "bytes": None, "top_logprobs": []}
            for value in choice.logprobs
        ]
        row["logprobs"] = {"content": entries}
    if choice.token_ids:
        row["token_ids"] = choice.token_ids.tolist()
    return row


def _message(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text}
    if choice.tool_calls:
        message |= {"content": choice.text or None, "tool_calls": choice.tool_calls}
    if choice.function_call is not None:
        message |= {"content": choice.text or None, "function_call": choice.function_call}
    if choice.refusal:
        message |= {"content": choice.text or None, "refusal": choice.refusal}
    if choice.reasoning:
        # Servers use either name.
        message |= {"reasoning_content": choice.reasoning, "reasoning": choice.reasoning}
    return message


def _delta(choice: Choice) -> dict[str, Any]:
    delta = _message(choice)
    del delta["role"]
    if choice.tool_calls:
        calls = enumerate(choice.tool_calls)
        delta["tool_calls"] = [{"index": index, **call} for index, call in calls]
    return delta

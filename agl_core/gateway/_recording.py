"""Turn finished exchanges into call records and write them to the store in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agl_core import semconv
from agl_core.clocks import new_id, wall_ns
from agl_core.gateway._attempts import Abort, Attempts, OpenAttempt, ProxiedCall
from agl_core.gateway._chat import distortions
from agl_core.gateway._exchange import Exchange
from agl_core.interfaces import Identity, Problem, RecordObserver, Store
from agl_core.types import Ingest, Losses, Mode, ModelCall, Span, SpanKind

_log = logging.getLogger(__name__)

_CANCELLED: Final = "cancelled: "
_ABORTS: Final[dict[Abort, tuple[int, str]]] = {
    "client": (499, _CANCELLED + "the client closed its connection"),
    "sealed": (410, _CANCELLED + "the attempt ended"),
    "drained": (503, _CANCELLED + "the policy was updated"),
    "deadline": (504, _CANCELLED + "the attempt's deadline passed"),
    "stopped": (503, _CANCELLED + "the gateway stopped"),
}
"""Status and error of an aborted call; the status applies if the client has received none."""


def model_call(exchange: Exchange) -> ModelCall:
    """Return the record of a try that has ended, for any reason."""
    call, answer = exchange.call, exchange.answer
    received = call.output.status if call.output is not None else 0
    status, error = received or exchange.status or 502, exchange.error
    if call.abort and not (exchange.complete or exchange.delivered):
        code, error = _ABORTS[call.abort]
        status = status if call.forwarded else code
    if exchange.capture and exchange.complete and not error:
        vocab_size = exchange.route.policy.vocab_size
        error = answer.mismatch(vocab_size, whole=exchange.delivered)
    choices = answer.choices
    has_logprobs = any(choice.logprobs for choice in choices)
    policy = exchange.route.policy
    return ModelCall(
        **_begun(call),
        sampling=exchange.sampling,
        prompt_token_ids=answer.recorded_prompt,
        choices=choices,
        logprobs_mode=exchange.route.logprobs_mode if has_logprobs else "none",
        response_id=answer.response_id,
        policy_version=policy.version,
        image_token=policy.image_token,
        complete=exchange.complete,
        answer_bytes=exchange.answer_bytes,
        status_code=status,
        error=error,
        first_token_ns=exchange.first_token_ns,
        thinking_tags=call.attempt.rollout.thinking_tags,
    )


def _begun(call: ProxiedCall) -> dict[str, Any]:
    """Return the fields of a record that do not depend on the call's result."""
    return {
        **_named(call.identity),
        "messages": call.request.messages,
        "tools": call.request.tools,
        "model": call.request.model,
        "policy": call.policy,
        "trainable": call.trainable,
        "streamed": call.request.stream,
        "tries": call.tries,
        "started_ns": call.started_ns,
        "ended_ns": max(wall_ns(), call.started_ns),  # the clock may have been set back
    }


def _named(identity: Identity) -> dict[str, Any]:
    return {
        "id": identity.call_id,
        "rollout_id": identity.rollout_id,
        "attempt_id": identity.attempt_id,
        "agent": identity.agent,
        "agent_run_id": identity.agent_run_id,
        "alias": identity.alias,
    }


def span_of(exchange: Exchange, record: ModelCall) -> Span:
    """Return the gateway's span of a call, which has its tokens.

    The parent comes from the span that tracing records of the same call.
    """
    usage = exchange.answer.usage
    attributes: dict[str, Any] = {
        semconv.GEN_AI_OPERATION_NAME: "chat",
        semconv.GEN_AI_REQUEST_MODEL: record.model,
        semconv.GEN_AI_RESPONSE_MODEL: exchange.answer.model,
        semconv.GEN_AI_RESPONSE_ID: record.response_id,
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: [
            choice.finish_reason for choice in record.choices if choice.finish_reason
        ],
        semconv.GEN_AI_USAGE_INPUT_TOKENS: usage.prompt_tokens,
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: usage.completion_tokens,
    }
    if exchange.digest:
        attributes[semconv.AGL_REQUEST_DIGEST] = exchange.digest
    if exchange.recorded is not None:
        attributes[semconv.AGL_REPLAYED] = True
    attributes = {key: value for key, value in attributes.items() if value not in (None, "", [])}
    return _span(record, sequence=exchange.call.sequence, attributes=attributes)


def _built(call: ProxiedCall, exchange: Exchange) -> Span:
    try:
        return span_of(exchange, model_call(exchange))
    except Exception as error:  # noqa: BLE001  telemetry never stops the gateway
        _log.exception("Could not record call %s", call.id)
        return _span_without_answer(call, f"cannot be recorded ({type(error).__name__}: {error})")


def _span_without_answer(call: ProxiedCall, error: str) -> Span:
    record = ModelCall(**_begun(call), error=error)
    return _span(record, sequence=call.sequence, attributes={})


def _span(record: ModelCall, *, sequence: int, attributes: dict[str, Any]) -> Span:
    return Span(
        id=new_id("span"),
        rollout_id=record.rollout_id,
        attempt_id=record.attempt_id,
        kind=SpanKind.LLM,
        name="chat",
        agent=record.agent,
        agent_run_id=record.agent_run_id or None,
        sequence=sequence,
        start_ns=record.started_ns,
        end_ns=record.ended_ns,
        status="ok" if record.complete and not record.error else "error",
        error=record.error,
        attributes=attributes,
        call_id=record.id,
        call=record,
    )


def count_distortions(losses: Losses, record: ModelCall, *, mode: Mode) -> None:
    """Count the sampling parameters that distort the distribution of tokens to be trained on."""
    if mode == "train" and record.trainable and record.complete and not record.superseded:
        for cause in distortions(record.sampling):
            losses.add(cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOptions:
    """Settings for when records are written."""

    interval_s: float = 0.25
    """Seconds for which finished records are collected into one batch."""
    settle_s: float = 5.0
    """Seconds for which the record of a successful try is held back, as a late retry may supersede
    it."""
    max_unwritten: int = 4096
    """Number of unwritten records from which on new calls wait for the store."""


class Recording:
    """Writes records to the store in the background, and those of an attempt when it is sealed."""

    def __init__(
        self,
        store: Store,
        attempts: Attempts,
        *,
        losses: Losses,
        options: RecordingOptions,
        observers: Sequence[RecordObserver] = (),
    ) -> None:
        self._store = store
        self._attempts = attempts
        self._losses = losses
        self._options = options
        self._observers = observers
        self._pending = 0
        self._due = asyncio.Event()
        self._space = asyncio.Event()
        self._space.set()
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="agl-gateway-recording")

    async def stop(self) -> None:
        """Stop writing in the background and write the remaining records of open attempts."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        async with self._writing:
            await self._write(self._attempts, ended_before_ns=None)

    @property
    def unwritten(self) -> int:
        """Number of records that are not in the store yet."""
        return self._pending

    async def wait_for_space(self) -> None:
        """Wait while too many records are unwritten: a slow store has to slow the agents down."""
        await self._space.wait()

    def keep(self, call: ProxiedCall, exchange: Exchange) -> None:
        """Record a request that has ended, once; as an error if its record cannot be built."""
        try:
            if not call.recorded:
                self._keep(call.attempt, _built(call, exchange))
                if call.request.tools and not exchange.route.policy.shows_tools:
                    self._losses.add("calls_with_unshown_tools")
        finally:
            call.attempt.end(call)

    def give_up(self, call: ProxiedCall) -> None:
        """Record a request that did not end when stopped, as an error."""
        if not call.recorded:
            self._keep(
                call.attempt, _span_without_answer(call, "the call did not end when stopped")
            )
            call.attempt.end(call)

    def refuse(self, attempt: OpenAttempt, identity: Identity, problem: Problem) -> None:
        """Record a request that was refused before it reached a backend."""
        now = wall_ns()
        record = ModelCall(
            **_named(identity),
            tries=attempt.next_try(identity.call_id),
            trainable=False,
            status_code=problem.status,
            error=f"{problem.code}: {problem.message}",
            started_ns=now,
            ended_ns=now,
        )
        self._keep(attempt, _span(record, sequence=attempt.next_sequence(), attributes={}))

    def _keep(self, attempt: OpenAttempt, span: Span) -> None:
        attempt.keep(span)
        for observer in self._observers:
            try:
                observer.recorded(span)
            except Exception:  # noqa: BLE001  telemetry never stops the gateway
                _log.exception("%s failed on the record of call %s", observer, span.call_id)
        self._pending += 1
        self._due.set()
        if self._pending >= self._options.max_unwritten:
            self._space.clear()

    async def write(self, attempt: OpenAttempt) -> None:
        """Write every record of one attempt.

        Raises:
            StoreError: the store did not accept them; they are kept for another try.
        """
        async with self._writing:
            await self._write([attempt], ended_before_ns=None)

    async def _run(self) -> None:
        failing = False
        while True:
            await self._due.wait()
            await asyncio.sleep(self._options.interval_s)
            try:
                await self._write_settled()
                failing = False
            except Exception:  # noqa: BLE001  telemetry never stops the gateway
                # Sealing tries to write the same records again and raises the error.
                if not failing:
                    _log.exception("Could not write call records; they stay in memory")
                failing = True
            if not self._pending:
                self._due.clear()

    async def _write_settled(self) -> None:
        full = self._pending >= self._options.max_unwritten
        before = wall_ns() - int(self._options.settle_s * 1e9)
        async with self._writing:
            await self._write(self._attempts, ended_before_ns=None if full else before)

    async def _write(self, attempts: Iterable[OpenAttempt], *, ended_before_ns: int | None) -> None:
        taken = [(a, a.take(ended_before_ns=ended_before_ns)) for a in attempts]
        spans = [span for _, batch in taken for span in batch]
        if not spans:
            return
        try:
            ingest: Ingest = await self._store.add_spans(spans)
        except BaseException:
            for attempt, batch in taken:
                attempt.put_back(batch)
            raise
        self._pending -= len(spans)
        if self._pending < self._options.max_unwritten:
            self._space.set()
        self._losses.add("late_records", ingest.late)
        for attempt, batch in taken:
            for span in batch:
                assert span.call is not None
                count_distortions(self._losses, span.call, mode=attempt.rollout.mode)

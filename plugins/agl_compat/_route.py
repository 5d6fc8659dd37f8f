"""The gateway's route for triplets: they become recorded calls of a running attempt."""

from __future__ import annotations

from array import array
from typing import Final

import msgspec

from agl_compat._triplets import ATTRIBUTE, GivenTriplet
from agl_core import semconv
from agl_core.clocks import new_id, wall_ns
from agl_core.errors import EngineError, StoreError
from agl_core.interfaces import (
    Access,
    Backend,
    Identity,
    Problem,
    RouteAnswer,
    RouteRequest,
    Scored,
    Store,
)
from agl_core.types import (
    ID_LIMIT,
    Choice,
    Losses,
    ModelCall,
    Policy,
    Sampling,
    Span,
    SpanKind,
)

_LARGEST: Final = 64 * 1024 * 1024
"""Most bytes of a request."""
_LEAST, _MOST = -104.0, 1e-3
"""Log-probabilities that a token can have in 32-bit floats."""


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    triplets: list[GivenTriplet]


class TripletIngest:
    """A route that records triplets as calls of the attempt, with exact ids.

    Without log-probabilities, the backend computes them with the weights that serve now; the
    record says so and names the version of these weights.
    """

    access: Access = "agents"

    def __init__(self, store: Store, losses: Losses) -> None:
        self._store = store
        self._losses = losses

    async def serve(self, request: RouteRequest) -> RouteAnswer:
        """Answer one request.

        Raises:
            Problem: a triplet is not exact, its attempt does not run, or the store or the backend
                is unavailable.
        """
        identity = request.identity()
        request.admit(identity.rollout_id, identity.attempt_id)
        triplets = _read(await request.body(largest=_LARGEST, advice="return fewer triplets"))
        backend, _ = request.backend(identity, "")
        policy = request.policy(identity, "")
        trained = policy.trainable and identity.trainable
        for number, given in enumerate(triplets, 1):
            _check(given, policy, f"Triplet {number} of {len(triplets)}")
        spans = [
            await _span(given, identity, policy, backend, trained=trained) for given in triplets
        ]
        try:
            ingest = await self._store.add_spans(spans)
        except StoreError as error:
            message = f"The store did not take the triplets: {error}"
            raise Problem(503, "store_unavailable", message, retry=True) from error
        if ingest.late:
            self._losses.add("late_calls", ingest.late)
            message = f"Attempt {identity.attempt_id!r} has ended: no call is taken for it any more"
            raise Problem(410, "attempt_sealed", message)
        return RouteAnswer(body=msgspec.json.encode({"calls": [given.id for given in triplets]}))


def _read(body: bytes) -> list[GivenTriplet]:
    try:
        triplets = msgspec.json.decode(body, type=_Body).triplets
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"Request body is no list of triplets: {error}"
        raise Problem(400, "invalid_body", message) from error
    if not triplets:
        raise Problem(400, "invalid_body", "Request body has no triplet: send at least one")
    return triplets


def _check(given: GivenTriplet, policy: Policy, where: str) -> None:
    limit = policy.vocab_size or ID_LIMIT
    for name, ids in (("prompt", given.prompt), ("response", given.response)):
        if not ids:
            raise _inexact(f"{where} has an empty {name}: give at least one token id")
        wrong = next((each for each in ids if not 0 <= each < limit), None)
        if wrong is not None:
            raise _inexact(
                f"{where} has in its {name} the token id {wrong}, which is not one of policy "
                f"{policy.name!r}, whose ids are 0 to {limit - 1}: use the tokenizer of its model"
            )
    if given.logprobs is None:
        return
    if len(given.logprobs) != len(given.response):
        raise _inexact(
            f"{where} has {len(given.response)} response ids but {len(given.logprobs)} "
            f"log-probabilities: give one per id"
        )
    wrong = next((each for each in given.logprobs if not _LEAST <= each <= _MOST), None)
    if wrong is not None:
        raise _inexact(f"{where} has the log-probability {wrong}: give natural logarithms")


async def _span(
    given: GivenTriplet, identity: Identity, policy: Policy, backend: Backend, *, trained: bool
) -> Span:
    source, version = "given", policy.version if given.version is None else given.version
    logprobs = given.logprobs
    if logprobs is None:
        source, logprobs = "none", []
        scored = await _scored(given, backend) if trained else None
        if scored is not None:
            source, logprobs, version = "computed", scored.logprobs, scored.version
    choice = Choice(
        token_ids=array("i", given.response),
        logprobs=array("f", logprobs),
        text=await backend.detokenize(given.response) or "",
        finish_reason="stop",
    )
    now = wall_ns()
    call = ModelCall(
        id=given.id,
        rollout_id=identity.rollout_id,
        attempt_id=identity.attempt_id,
        agent=identity.agent,
        agent_run_id=identity.agent_run_id,
        alias=identity.alias,
        sampling=Sampling(temperature=given.temperature),
        prompt_token_ids=array("i", given.prompt),
        choices=[choice],
        logprobs_mode="processed" if logprobs else "none",
        policy=policy.name,
        policy_version=version,
        trainable=trained,
        complete=True,
        started_ns=now,
        ended_ns=now,
    )
    return Span(
        id=new_id("span"),
        rollout_id=call.rollout_id,
        attempt_id=call.attempt_id,
        kind=SpanKind.LLM,
        name="triplet",
        agent=call.agent,
        agent_run_id=call.agent_run_id or None,
        start_ns=now,
        end_ns=now,
        status="ok",
        attributes={
            semconv.GEN_AI_OPERATION_NAME: "chat",
            semconv.GEN_AI_USAGE_INPUT_TOKENS: len(given.prompt),
            semconv.GEN_AI_USAGE_OUTPUT_TOKENS: len(given.response),
            ATTRIBUTE: source,
        },
        call_id=call.id,
        call=call,
    )


async def _scored(given: GivenTriplet, backend: Backend) -> Scored | None:
    try:
        return await backend.score(given.prompt, given.response, temperature=given.temperature)
    except ValueError as error:
        raise _inexact(f"A triplet cannot be scored: {error}") from error
    except EngineError as error:
        message = f"The engine did not compute log-probabilities: {error}"
        raise Problem(503, "engine_unavailable", message, retry=True) from error


def _inexact(message: str) -> Problem:
    return Problem(400, "inexact_triplet", message)

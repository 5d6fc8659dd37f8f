"""What training refuses of the calls that the gateway recorded, from the backend's bytes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_core.adapters import AgentSelector, join
from agl_core.errors import CaptureError, EmptyAnswerError, TokenMismatchError
from agl_core.gateway import Payload
from agl_core.gateway._capture import ReceivedAnswer
from agl_core.interfaces import AttemptRecord
from agl_core.types import AttemptStatus, Policy, RolloutQuery

POLICIES = [Policy(name="trained", agents=("writer",), trainable=True), Policy(name="frozen")]
Tamper = Callable[[dict[str, Any]], None]


async def joined(world: Any, attempt: Any) -> Any:
    """Join what was recorded, as training does."""
    await world.gateway.seal(attempt.id)
    ended = msgspec.structs.replace(attempt, status=AttemptStatus.SUCCEEDED, sealed=True)
    (rollout,) = await world.store.rollouts(RolloutQuery(ids=(attempt.rollout_id,)))
    record = AttemptRecord(
        rollout=rollout,
        attempt=ended,
        spans=await world.store.spans([attempt.rollout_id]),
    )
    return join(record, agents=AgentSelector(["writer"]), policies=POLICIES)


def first_logprob(value: float | None) -> Tamper:
    def tamper(payload: dict[str, Any]) -> None:
        for row in payload["choices"]:
            for entry in (row.get("logprobs") or {}).get("content") or ():
                entry["logprob"] = value

    return tamper


def prompt_id(value: int) -> Tamper:
    def tamper(payload: dict[str, Any]) -> None:
        if payload.get("prompt_token_ids"):
            payload["prompt_token_ids"][-1] = value

    return tamper


def sampled_id(value: int) -> Tamper:
    def tamper(payload: dict[str, Any]) -> None:
        for row in payload["choices"]:
            if row.get("token_ids"):
                row["token_ids"][0] = value

    return tamper


def finish_reason(value: str) -> Tamper:
    def tamper(payload: dict[str, Any]) -> None:
        for row in payload["choices"]:
            if row.get("finish_reason"):
                row["finish_reason"] = value

    return tamper


def no_usage(payload: dict[str, Any]) -> None:
    payload.pop("usage", None)


def says_nothing(payload: dict[str, Any]) -> None:
    for row in payload["choices"]:
        row |= {"token_ids": [], "logprobs": None}
        row["message" if "message" in row else "delta"]["content"] = ""
    if payload.get("usage"):
        payload["usage"]["completion_tokens"] = 0


REFUSED: list[tuple[str, Tamper, type[CaptureError]]] = [
    *((f"A3 prompt {id_}", prompt_id(id_), TokenMismatchError) for id_ in (2**31, 10**30, -1)),
    *((f"A3 answer {id_}", sampled_id(id_), TokenMismatchError) for id_ in (2**31, 10**30, -1)),
    *((f"A4 {value}", first_logprob(value), TokenMismatchError) for value in (None, -9999.0)),
    *((f"A4 {value}", first_logprob(float(value)), TokenMismatchError) for value in ("nan", "inf")),
    ("B3 no usage", no_usage, TokenMismatchError),
    ("B4 error", finish_reason("error"), CaptureError),
    ("B4 unknown", finish_reason("tired"), CaptureError),
    ("C8 empty", says_nothing, EmptyAnswerError),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tamper", "error"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED]
)
async def test_training_refuses_the_call(
    world: Any, tamper: Tamper, error: type[CaptureError], stream: bool
) -> None:
    """A3, A4, B3, B4, C8: a typed error that names the call; the client had its answer."""
    world.server.tamper = tamper
    attempt = await world.attempt()
    async with world.post(world.headers(attempt), stream=stream) as answer:
        assert answer.status == 200
        assert await answer.read()
    with pytest.raises(CaptureError, match="writer") as raised:
        await joined(world, attempt)
    assert type(raised.value) is error


async def test_training_takes_the_call_as_it_came(world: Any) -> None:
    """The control of the test above."""
    attempt = await world.attempt()
    await world.ask(attempt, stream=True)
    result = await joined(world, attempt)
    assert [call.trained for call in result.calls] == [True]
    assert json.loads(json.dumps(result.losses.counts)) == {}


IDS = st.lists(
    st.integers(-2, 12) | st.sampled_from([2**31, -(2**31), 10**30]), min_size=1, max_size=6
)
STATED = st.none() | st.integers(0, 8)


@given(prompt=IDS, sampled=IDS, vocab=st.none() | st.integers(1, 12), read=STATED, drawn=STATED)
def test_ids_are_taken_only_if_they_are_the_models_and_all_there(
    prompt: list[int], sampled: list[int], vocab: int | None, read: int | None, drawn: int | None
) -> None:
    """A3, B3: as a property, over ids, vocabularies and usages, stated or not."""
    answer = ReceivedAnswer(expected_choices=1)
    usage = {"prompt_tokens": read, "completion_tokens": drawn}
    content = [{"token": "x", "logprob": -1.0} for _ in sampled]
    row = {
        "index": 0,
        "message": {"content": "x"},
        "token_ids": sampled,
        "logprobs": {"content": content},
        "finish_reason": "stop",
    }
    body = {"prompt_token_ids": prompt, "choices": [row], "usage": usage}
    answer.add(Payload(json.dumps(body).encode()), whole=True)

    possible = all(0 <= each < (vocab or 2**31) for each in (*prompt, *sampled))
    confirmed = drawn == len(sampled) and read in (None, len(prompt))
    assert (answer.mismatch(vocab) == "" and not answer.problem) is (possible and confirmed)

"""Spans that are encrypted and decrypted together, and values that earlier versions stored."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from agl_encryption import EncryptionError, _records
from msgspec.structs import replace

from agl_core.store import ROLLOUTS, SPANS, MemoryStore, SqliteStore, encode_span
from agl_core.types import (
    AttemptStatus,
    Choice,
    ModelCall,
    Rollout,
    RolloutQuery,
    Span,
    SpanKind,
    Task,
    pack_floats,
    pack_ints,
)
from tests.plugins.encryption.keyring import NEW, OLD, encrypted, sealing

STORED = json.loads((Path(__file__).parent / "stored.json").read_text())
"""Records that were encrypted before spans were encrypted in batches, with the key ``old``."""


def note(span_id: str, attempt_id: str = "at_1", **fields: Any) -> Span:
    return Span(
        id=span_id,
        rollout_id="ro_1",
        attempt_id=attempt_id,
        kind=SpanKind.MESSAGE,
        name="note",
        **fields,
    )


def sealed_of(span: Span) -> bytes:
    return span.attributes["agl.sealed"]


def test_no_two_values_of_a_batch_have_one_nonce() -> None:
    box = sealing({"old": OLD})
    same = [note("sp_1")] * 500
    sealed = [sealed_of(span) for _ in range(3) for span in box.seal_spans(same)]
    start = sealed[0].index(b"\x03old") + 4
    assert len({value[start : start + 12] for value in sealed}) == 1500
    assert len({value[start + 12 :] for value in sealed}) == 1500
    assert box.open_spans(box.seal_spans(same)) == same
    assert box.seal_spans([]) == box.open_spans([]) == []


def test_each_value_of_a_batch_is_bound_to_its_span() -> None:
    box = sealing({"old": OLD})
    spans = [note(f"sp_{n}", f"at_{n // 2}\ud83d", attributes={"n": n}) for n in range(6)]
    sealed = box.seal_spans(spans)
    assert box.open_spans(sealed) == spans
    assert box.open_spans(sealed[::-1]) == spans[::-1]
    for one, other in ((0, 1), (0, 2), (1, 4)):
        moved = replace(sealed[one], attributes=sealed[other].attributes)
        with pytest.raises(EncryptionError, match=f"'{spans[one].id}' .* changed or moved"):
            box.open_spans([sealed[5], moved])


def test_what_is_readable_of_a_span_is_what_was_encrypted_with_it() -> None:
    """Who can write to the database does not change times and numbers of encrypted spans."""
    box = sealing({"old": OLD})
    (sealed,) = box.seal_spans([note("sp_1", start_ns=1, status="ok")])
    assert (sealed.start_ns, sealed.status) == (1, "ok")
    (opened,) = box.open_spans([replace(sealed, start_ns=2, status="error")])
    assert (opened.start_ns, opened.status) == (1, "ok")


async def test_spans_of_several_keys_and_of_none_are_read_together() -> None:
    inner = MemoryStore()
    await inner.open()
    await inner.enqueue([Rollout(id="ro_1", task=Task(id="t"), run_id="r")])
    (claim,) = await inner.claim("w")
    attempt = claim.attempt.id
    both = encrypted(inner, {"old": OLD, "new": NEW}, active="new")
    spans = [note(f"sp_{n}", attempt, attributes={"n": n}, sequence=n) for n in range(6)]
    for n, store in enumerate((inner, encrypted(inner), both) * 2):
        await store.add_spans([spans[n]])
    assert await both.spans(["ro_1"]) == spans
    with pytest.raises(EncryptionError, match="'sp_2' is encrypted with key 'new'"):
        await encrypted(inner).spans(["ro_1"])
    shown = await encrypted(inner).shown().spans(["ro_1"])
    hidden = {"agl.encrypted": "[encrypted with key new]"}
    assert [span.attributes for span in shown] == [
        hidden if n % 3 == 2 else {"n": n} for n in range(6)
    ]
    await inner.close()


class Custom:
    def __repr__(self) -> str:
        return "a value of the user's"


@pytest.mark.parametrize("fields", [None, ["attributes"], ["messages", "errors"]])
async def test_odd_values_in_a_batch_are_stored_as_without_encryption(fields) -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    call = ModelCall(
        id="ca_1",
        rollout_id="ro_1",
        attempt_id="at_1",
        agent="a",
        messages=[{"role": "user", "content": "lone \ud83d", "seed": 2**70}],
        prompt_token_ids=pack_ints([1, -1, 2**31 - 1]),
        choices=[Choice(token_ids=pack_ints([7]), logprobs=pack_floats([float("-inf")]))],
    )
    spans = [
        note("sp_1", attributes={"text": "plain"}),
        note("sp_2", attributes={"text": "lone \ud83d", "n": 2**70, "bytes": b"\x00\xff"}),
        note("sp_3", attributes=endless, error="broken"),
        note("sp_4", attributes={"object": Custom(), "packed": pack_ints([1, 2])}),
        note("sp_5", call=call),
        note("sp_6", attributes={1: "a number as name"}),
    ]
    plain = [SPANS.decode(encode_span(span)) for span in spans]
    box = sealing({"old": OLD}, **({"fields": fields} if fields else {}))
    for batch in (spans, spans[:1], *([span] for span in spans)):
        stored = [SPANS.decode(encode_span(span)) for span in box.seal_spans(batch)]
        assert box.open_spans(stored) == [plain[spans.index(span)] for span in batch]


def test_what_an_earlier_version_encrypted_is_read() -> None:
    call = ModelCall(
        id="ca_1",
        rollout_id="ro_1",
        attempt_id="at_1",
        agent="planner",
        model="m",
        messages=[{"role": "user", "content": "hi"}],
        prompt_token_ids=pack_ints([1, 2]),
        choices=[
            Choice(token_ids=pack_ints([3]), logprobs=pack_floats([-0.5]), text="yes"),
        ],
    )
    span = Span(
        id="sp_1",
        rollout_id="ro_1",
        attempt_id="at_1",
        kind=SpanKind.LLM,
        name="chat",
        agent="planner",
        sequence=1,
        error="broken",
        attributes={"a": "b"},
        call=call,
    )
    box = sealing({"old": OLD})
    *spans, rollout = [b64decode(text) for text in STORED.values()]
    assert box.open_spans([SPANS.decode(blob) for blob in spans]) == [span, span]
    assert box.open_rollout(ROLLOUTS.decode(rollout)).task == Task(id="t", input="q")


async def test_tasks_that_are_kept_in_memory_are_copies_and_few(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(_records, "_MOST_TASKS", 2)
    inner = SqliteStore(tmp_path / "store.db")
    store = encrypted(inner)
    await store.open()
    given = {"words": ["a"]}
    rollouts = [Rollout(id=f"ro_{n}", task=Task(id="t", input=given), run_id="r") for n in range(5)]
    queued = await store.enqueue([*rollouts, rollouts[0]])
    given["words"].append("changed by the caller")
    for rollout in queued:
        assert rollout.task.input == {"words": ["a"]}
    queued[0].task.input["words"].append("changed by another caller")
    for _ in range(2):
        found = await store.rollouts(RolloutQuery())
        assert [rollout.task.input for rollout in found] == [{"words": ["a"]}] * 5
        found[0].task.input["words"].append("changed by a reader")
    (claim, *_) = await store.claim("w", limit=5)
    assert claim.rollout.task.input == {"words": ["a"]}
    await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED)
    (ended,) = await store.wait([claim.rollout.id])
    assert ended.task.input == {"words": ["a"]}
    assert len(store._sealing._tasks) <= 2
    (kept,) = await inner.rollouts(RolloutQuery(ids=("ro_1",)))
    await inner.enqueue([Rollout(id="ro_9", task=kept.task, run_id="r")])
    await store.rollouts(RolloutQuery(ids=("ro_1",)))
    with pytest.raises(EncryptionError, match=r"'ro_9' .* changed or moved"):
        await store.rollouts(RolloutQuery(ids=("ro_9",)))
    await store.close()

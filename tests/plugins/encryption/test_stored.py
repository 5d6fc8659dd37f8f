"""What is in the database, and what is read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from agl_encryption import EncryptionError
from agl_encryption._options import FIELDS

from agl_core.errors import StoreError
from agl_core.interfaces import StoreLifecycle
from agl_core.store import SqliteStore
from agl_core.types import (
    LLM,
    AttemptStatus,
    Choice,
    Failure,
    FailureKind,
    ModelCall,
    PromptTemplate,
    Resources,
    Reward,
    Rollout,
    RolloutQuery,
    Sampling,
    Span,
    SpanKind,
    Task,
    pack_floats,
    pack_ints,
)
from tests.plugins.encryption.keyring import NEW, OLD, encrypted, without_keys

ODD = "NUL \x00, lone \ud83d, escape \\d83d, both \U0001f600"
TOKENS = list(range(70_001, 70_033))

PLANTED = {
    "messages": "planted-message planted-tool planted-answer planted-thought planted-stop "
    "planted-extra planted-argument planted-refusal planted-transcript",
    "attributes": "planted-attribute planted-name-of-an-attribute",
    "errors": "planted-failure planted-traceback planted-span-error planted-call-error",
    "rewards": "planted-reason",
    "outputs": "planted-output",
    "tasks": "planted-input planted-expected planted-metadata",
    "prompts": "planted-prompt planted-known planted-secret",
}
"""Words that records have in each field; the tokens are `TOKENS`."""
READABLE = ("run-name", "task-7", "planner", "the-model", "note", "search")
"""What is not encrypted: ids and names."""


def spans_of(rollout_id: str, attempt_id: str) -> list[Span]:
    call = ModelCall(
        id="ca_1",
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        agent="planner",
        messages=[{"role": "user", "content": f"planted-message {ODD}"}],
        tools=[{"type": "function", "function": {"name": "planted-tool"}}],
        sampling=Sampling(temperature=0.5, stop=("planted-stop",), extra={"user": "planted-extra"}),
        prompt_token_ids=pack_ints(TOKENS),
        choices=[
            Choice(
                token_ids=pack_ints(TOKENS[::-1]),
                logprobs=pack_floats([-0.125] * len(TOKENS)),
                text="planted-answer",
                reasoning="planted-thought",
                tool_calls=[{"function": {"name": "x", "arguments": "planted-argument"}}],
                refusal="planted-refusal",
                finish_reason="stop",
            ),
            Choice(index=1, audio="planted-transcript"),
        ],
        model="the-model",
        error="planted-call-error",
        complete=True,
    )
    base = {"rollout_id": rollout_id, "attempt_id": attempt_id}
    reward = Reward(value=0.75, channel="main", why=f"planted-reason {ODD}")
    return [
        Span(
            id="sp_1",
            kind=SpanKind.LLM,
            name="chat",
            agent="planner",
            sequence=1,
            call=call,
            **base,
        ),
        Span(id="sp_2", kind=SpanKind.REWARD, name="note", sequence=2, reward=reward, **base),
        Span(
            id="sp_3",
            kind=SpanKind.TOOL,
            name="search",
            sequence=3,
            start_ns=5,
            error="planted-span-error",
            attributes={"planted-name-of-an-attribute": ["planted-attribute", 2**70, ODD, b"\x00"]},
            **base,
        ),
    ]


def task() -> Task:
    return Task(
        id="task-7",
        input={"text": f"planted-input {ODD}"},
        expected="planted-expected",
        metadata={"note": "planted-metadata"},
    )


async def fill(store: StoreLifecycle) -> tuple[list[Span], Resources]:
    """Store one record of each kind, in two attempts of one rollout and another rollout."""
    published = await store.publish(
        Resources(
            run_id="run-name",
            items={
                "system": PromptTemplate(template=f"planted-prompt {ODD}", known="planted-known"),
                "judge": LLM(model="the-model", api_key="planted-secret"),
                "open": LLM(model="the-model"),
            },
        )
    )
    await store.enqueue([Rollout(id=f"ro_{n}", task=task(), run_id="run-name") for n in (1, 2)])
    first, second = await store.claim("w", limit=2)
    spans = spans_of(first.rollout.id, first.attempt.id)
    await store.add_spans(spans[:2])
    await store.finish(
        first.attempt.id,
        status=AttemptStatus.SUCCEEDED,
        spans=spans[2:],
        output={"answer": f"planted-output {ODD}", "n": 2**70},
    )
    failure = Failure(
        kind=FailureKind.AGENT,
        message=f"planted-failure {ODD}",
        type="mine.Broken",
        traceback="planted-traceback",
    )
    await store.finish(second.attempt.id, status=AttemptStatus.FAILED, failure=failure)
    return spans, published


async def check(store: StoreLifecycle, spans: list[Span], published: Resources) -> None:
    assert await store.spans(["ro_1"]) == spans
    one, two = await store.rollouts(RolloutQuery())
    assert one.task == two.task == task()
    assert one.attempts[0].output == {"answer": f"planted-output {ODD}", "n": 2**70}
    failure = two.attempts[0].failure
    assert failure is not None
    assert failure.message == f"planted-failure {ODD}"
    assert (failure.type, failure.traceback) == ("mine.Broken", "planted-traceback")
    assert await store.resources() == await store.resources(1) == published
    assert (await store.wait(["ro_1", "ro_2"])) == [one, two]


def content(folder: Path) -> bytes:
    """Everything that the store wrote, with its log."""
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


async def written(folder: Path, fields=FIELDS) -> tuple[list[Span], Resources]:
    store = encrypted(SqliteStore(folder / "store.db"), fields=fields)
    await store.open()
    filled = await fill(store)
    await check(store, *filled)
    await store.close()
    return filled


async def read(folder: Path, layer=encrypted, **settings) -> StoreLifecycle:
    store = layer(SqliteStore(folder / "store.db").reader(), **settings)
    await store.open()
    return store


async def test_a_database_has_no_planted_text_and_no_token(tmp_path: Path) -> None:
    await written(tmp_path / "run")
    raw = content(tmp_path / "run")
    for word in " ".join(PLANTED.values()).split():
        assert word.encode() not in raw, word
    assert pack_ints(TOKENS).tobytes()[:16] not in raw
    assert pack_floats([-0.125] * 4).tobytes() not in raw
    for word in READABLE:
        assert word.encode() in raw, word


@pytest.mark.parametrize("field", FIELDS)
async def test_only_the_fields_of_the_list_are_encrypted(tmp_path: Path, field: str) -> None:
    filled = await written(tmp_path / "run", [field])
    raw = content(tmp_path / "run")
    for name, words in PLANTED.items():
        found = {word for word in words.split() if word.encode() in raw}
        assert found == (set() if name == field else {*words.split()})
    assert (pack_ints(TOKENS).tobytes() in raw) == (field != "tokens")
    store = await read(tmp_path / "run")
    await check(store, *filled)
    await store.close()


async def test_what_was_stored_before_is_read_beside_what_is_encrypted(tmp_path: Path) -> None:
    plain = SqliteStore(tmp_path / "store.db")
    await plain.open()
    filled = await fill(plain)
    store = encrypted(plain)
    await check(store, *filled)
    again = await store.enqueue([Rollout(id="ro_1", task=task(), run_id="run-name")])
    assert again[0].attempts
    assert await store.publish(filled[1]) == filled[1]
    other = Rollout(id="ro_3", task=task(), run_id="run-name")
    assert (await store.enqueue([other]))[0].task == task()
    (found,) = await plain.rollouts(RolloutQuery(ids=("ro_3",)))
    assert isinstance(found.task.input, bytes)
    await store.close()


async def test_a_repeated_request_is_recognised_whatever_the_key(tmp_path: Path) -> None:
    inner = SqliteStore(tmp_path / "store.db")
    await inner.open()
    old = encrypted(inner)
    _, published = await fill(old)
    both = encrypted(inner, {"old": OLD, "new": NEW}, active="new")
    request = Rollout(id="ro_1", task=task(), run_id="run-name")
    for store in (old, both):
        first, second = await store.enqueue([request, request])
        assert first == second
        assert first.attempts
        with pytest.raises(StoreError, match="ro_1"):
            await store.enqueue([Rollout(id="ro_1", task=Task(id="other"), run_id="run-name")])
        with pytest.raises(StoreError, match="ro_9"):
            await store.enqueue(
                [Rollout(id="ro_9", task=Task(id=each), run_id="r") for each in ("a", "b")]
            )
        assert (await store.publish(published)).version == 1
        ended = (
            await store.finish(
                first.attempts[0].id,
                status=AttemptStatus.SUCCEEDED,
                spans=spans_of("ro_1", first.attempts[0].id)[2:],
                output={"answer": f"planted-output {ODD}", "n": 2**70},
            )
            if store is old
            else first.attempts[0]
        )
        assert ended == first.attempts[0]
    assert await inner.rollouts(RolloutQuery(ids=("ro_9",))) == []
    await inner.close()


async def test_equal_contents_are_encrypted_to_different_bytes(tmp_path: Path) -> None:
    inner = SqliteStore(tmp_path / "store.db")
    store = encrypted(inner)
    await store.open()
    await store.enqueue([Rollout(id=f"ro_{n}", task=task(), run_id="r") for n in range(3)])
    for claim in await store.claim("w", limit=3):
        await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED, output="same")
    found = await inner.rollouts(RolloutQuery())
    assert len({rollout.task.input for rollout in found}) == 3
    assert len({rollout.attempts[0].output for rollout in found}) == 3
    await store.close()


@pytest.mark.parametrize("size", [0, 1, 10_000_000])
async def test_values_of_any_size_are_encrypted(tmp_path: Path, size: int) -> None:
    store = encrypted(SqliteStore(tmp_path / "store.db"))
    await store.open()
    text = "é" * size
    await store.enqueue([Rollout(id="ro_1", task=Task(id="t", input=text), run_id="r")])
    (claim,) = await store.claim("w")
    assert claim.rollout.task.input == text
    span = Span(
        id="sp_1",
        rollout_id="ro_1",
        attempt_id=claim.attempt.id,
        kind=SpanKind.MESSAGE,
        name="note",
        attributes={"text": text},
    )
    await store.add_spans([span])
    ended = await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED, output=text)
    assert ended.output == text
    assert await store.spans(["ro_1"]) == [span]
    await store.close()


async def test_a_wrong_key_is_an_error_that_says_so(tmp_path: Path) -> None:
    await written(tmp_path / "run")
    store = await read(tmp_path / "run", keys={"old": NEW})
    says = r"Span 'sp_1' is encrypted with key 'old', but the key of this id does not decrypt it"
    with pytest.raises(EncryptionError, match=says):
        await store.spans(["ro_1"])
    with pytest.raises(EncryptionError, match=r"task of rollout 'ro_1'|output of attempt"):
        await store.rollouts(RolloutQuery())
    with pytest.raises(EncryptionError, match=r"of version 1 of the resources is encrypted"):
        await store.resources()
    await store.close()


async def test_a_key_that_is_not_here_is_named(tmp_path: Path) -> None:
    await written(tmp_path / "run")
    store = await read(tmp_path / "run", keys={"new": NEW})
    says = r"key 'old', which is not here: .* AGL_ENCRYPTION_KEYS; the keys here are \['new'\]"
    with pytest.raises(EncryptionError, match=says) as caught:
        await store.spans(["ro_1"])
    assert caught.value.key_id == "old"
    await store.close()
    store = await read(tmp_path / "run", without_keys)
    with pytest.raises(EncryptionError, match=r"not here: set AGL_ENCRYPTION_KEY"):
        await store.rollouts(RolloutQuery())
    await store.close()


@pytest.mark.parametrize("keys", [None, {"old": NEW}, {"new": NEW}])
async def test_people_see_that_a_record_is_encrypted(tmp_path: Path, keys) -> None:
    await written(tmp_path / "run")
    layer = (lambda inner: encrypted(inner, keys)) if keys else without_keys
    store = layer(SqliteStore(tmp_path / "run" / "store.db")).reader().shown()
    await store.open()
    shown = "[encrypted with key old]"
    call, reward, tool = await store.spans(["ro_1"])
    assert (call.kind, call.agent, call.call) == (SpanKind.LLM, "planner", None)
    assert call.attributes == {
        "agl.encrypted": shown,
        "gen_ai.request.model": "the-model",
        "gen_ai.usage.input_tokens": 32,
        "gen_ai.usage.output_tokens": 32,
    }
    assert reward.reward is not None
    assert (reward.reward.value, reward.reward.why) == (0.75, shown)
    assert tool.attributes == {"agl.encrypted": shown}
    one, two = await store.rollouts(RolloutQuery())
    assert one.task == Task(id="task-7", input=shown)
    assert one.attempts[0].output == shown
    assert two.attempts[0].failure is not None
    assert two.attempts[0].failure.message == shown
    resources = await store.resources()
    assert resources is not None
    assert resources.items["system"] == PromptTemplate(template=shown)
    await store.close()


async def test_people_see_which_messages_are_encrypted(tmp_path: Path) -> None:
    await written(tmp_path, ["messages"])
    store = without_keys(SqliteStore(tmp_path / "store.db")).reader().shown()
    await store.open()
    shown = "[encrypted with key old]"
    call, reward, tool = await store.spans(["ro_1"])
    assert call.call is not None
    assert call.call.messages == [{"role": "user", "content": shown}]
    assert [choice.text for choice in call.call.choices] == [shown, shown]
    assert call.call.prompt_token_ids == pack_ints(TOKENS)
    assert reward.reward is not None
    assert reward.reward.why.startswith("planted-reason")
    assert tool.error == "planted-span-error"
    await store.close()


async def test_a_record_that_was_moved_or_changed_is_refused(tmp_path: Path) -> None:
    inner = SqliteStore(tmp_path / "store.db")
    store = encrypted(inner)
    await store.open()
    await fill(store)
    one, two = await inner.rollouts(RolloutQuery())
    await store.close()
    assert isinstance(one.task.input, bytes)
    changed = one.task.input[:-1] + bytes([one.task.input[-1] ^ 1])
    for rollout_id, value in (("ro_5", two.task.input), ("ro_6", changed)):
        await inner.open()
        moved = Rollout(id=rollout_id, task=Task(id="t", input=value), run_id="r")
        await inner.enqueue([moved])
        with pytest.raises(EncryptionError, match="the record was changed or moved"):
            await store.rollouts(RolloutQuery(ids=(rollout_id,)))
        await inner.close()


@pytest.mark.parametrize(
    "value",
    [
        b"\x00agl-sealed\x01",
        b"\x00agl-sealed\x01\x03old",
        b"\x00agl-sealed\x01\x00" + b"x" * 40,
        b"",
    ],
)
async def test_bytes_that_only_look_encrypted_are_read_as_they_are(tmp_path: Path, value) -> None:
    inner = SqliteStore(tmp_path / "store.db")
    await inner.open()
    await inner.enqueue([Rollout(id="ro_1", task=Task(id="t", input=value), run_id="r")])
    await encrypted(inner).enqueue([Rollout(id="ro_2", task=Task(id="t", input=value), run_id="r")])
    (claim, other) = await encrypted(inner).claim("w", limit=2)
    assert claim.rollout.task.input == other.rollout.task.input == value
    text = "agl-sealed:not base64"
    failure = Failure(kind=FailureKind.AGENT, message=text)
    await inner.finish(claim.attempt.id, status=AttemptStatus.FAILED, failure=failure)
    (rollout,) = await encrypted(inner).rollouts(RolloutQuery(ids=("ro_1",)))
    assert rollout.attempts[0].failure == failure
    await inner.close()


async def test_a_task_that_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    store = encrypted(SqliteStore(tmp_path / "store.db"))
    await store.open()
    endless: list[object] = []
    endless.append(endless)
    for wrong in (Task(id="t", input=endless), Task(id="t", metadata=["no"])):
        with pytest.raises(StoreError, match="cannot be stored"):
            await store.enqueue([Rollout(id="ro_1", task=wrong, run_id="r")])
    await store.close()

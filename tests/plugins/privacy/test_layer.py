"""Stores that mask what they keep."""

from typing import Any

import msgspec
import pytest
from agl_privacy import Masker, PrivacyOptions
from agl_privacy._layer import MaskedView, MaskingLayer, make_layer
from agl_testing.attempts import ScriptedAttempt

from agl_core import semconv
from agl_core.store import MemoryStore
from agl_core.types import AttemptStatus, Failure, FailureKind, Rollout, RolloutQuery, Span, Task

MAIL = "john@example.com"
MASKED = "j***@e*****e.com"


def spans_of(rollout_id: str, attempt_id: str) -> list[Span]:
    script = ScriptedAttempt("1")
    script.call("a", [1, 2], [3], messages=[{"role": "user", "content": MAIL}], error=MAIL)
    script.call("a", [1, 2], [4], messages=[{"role": "user", "content": "hi"}])
    script.reward(1.0, why=f"for {MAIL}")
    script.capture_error(MAIL)
    change = msgspec.structs.replace
    return [
        change(
            span,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            call=span.call and change(span.call, rollout_id=rollout_id, attempt_id=attempt_id),
        )
        for span in script.spans
    ]


async def ended(store: Any) -> tuple[Rollout, str]:
    """Record an attempt with personal data that fails."""
    await store.open()
    await store.enqueue([Rollout(id="ro", task=Task(id="t", input=MAIL), run_id="run")])
    (claim,) = await store.claim("worker")
    attempt = claim.attempt.id
    spans = spans_of("ro", attempt)
    await store.add_spans(spans[:-1])
    during = await store.spans(["ro"], attempt_id=attempt)
    assert {span.id: span for span in during} == {span.id: span for span in spans[:-1]}
    failure = Failure(kind=FailureKind.AGENT, message=MAIL, traceback=f"KeyError: {MAIL}")
    await store.finish(
        attempt, status=AttemptStatus.FAILED, spans=spans[-1:], failure=failure, output={"x": MAIL}
    )
    (rollout,) = await store.rollouts(RolloutQuery())
    return rollout, attempt


async def test_texts_are_masked_as_they_are_stored_and_rewards_see_them_until_the_end() -> None:
    inner = MemoryStore()
    layer = MaskingLayer(inner, Masker())
    rollout, attempt = await ended(layer)
    spans = await inner.spans(["ro"])
    assert MAIL not in str(spans)
    assert MAIL not in str(rollout.attempts)
    assert rollout.attempts[-1].output == {"x": MASKED}
    assert rollout.task.input == MAIL
    marked = [span for span in spans if semconv.AGL_MASKED in span.attributes]
    assert len(marked) == 3
    first, second = (span.call for span in spans if span.call is not None)
    assert list(first.prompt_token_ids) == [1, 2]
    assert second.messages == [{"role": "user", "content": "hi"}]
    assert str(await layer.spans(["ro"], attempt_id=attempt)) == str(spans)


async def test_a_view_for_others_has_neither_texts_nor_their_tokens() -> None:
    inner = MemoryStore()
    rollout, _ = await ended(inner)
    assert MAIL in str(rollout.task)
    view = MaskedView(inner, Masker())
    assert MAIL not in str(await view.rollouts(RolloutQuery()))
    spans = await view.spans(["ro"])
    assert MAIL not in str(spans)
    first, second = (span.call for span in spans if span.call is not None)
    assert not first.prompt_token_ids
    assert not first.choices[0].token_ids
    assert list(second.prompt_token_ids) == [1, 2]
    assert MAIL in str(await inner.spans(["ro"]))


@pytest.mark.parametrize("asked", [True, False])
def test_the_section_decides_whether_stores_are_masked(asked: bool) -> None:
    inner = MemoryStore()
    store = make_layer(PrivacyOptions(store=asked), inner)
    assert isinstance(store, MaskingLayer) == asked
    assert (store is inner) != asked

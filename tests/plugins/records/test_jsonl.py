from __future__ import annotations

import json
import math
from datetime import UTC, datetime

import pytest
from agl_records.jsonl import export_lines, read_export
from agl_stores import rollout_pages
from agl_testing._store_samples import begin, failure, model_call, rollout, span, succeed
from hypothesis import given
from hypothesis import strategies as st

from agl_core.errors import StoreError
from agl_core.store._memory import MemoryStore
from agl_core.types import (
    AttemptStatus,
    FailureKind,
    PromptTemplate,
    Resources,
    Reward,
    Rollout,
    RolloutQuery,
    RolloutStatus,
    Span,
    SpanKind,
)
from agl_core.types.json_text import json_text, json_value

TEXT = st.text() | st.sampled_from(["\ud800", "$bytes", "$float", "$dict", "a\0b", '"$', "👋"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | TEXT
    | st.binary()
    | st.datetimes(timezones=st.just(UTC))
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12
)


@given(value=VALUES, indent=st.sampled_from([None, 2]))
def test_every_value_comes_back(value, indent):
    text = json_text(value, indent=indent)

    assert json_value(text) == value
    text.encode()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_what_is_no_number_comes_back_too():
    assert math.isnan(json_value(json_text([math.nan]))[0])


async def filled():
    store = MemoryStore()
    await store.open()
    await store.publish(Resources(run_id="run", items={"p": PromptTemplate(template="{q}")}))
    await store.publish(Resources(run_id="run", step=1))
    for number in range(3):
        claim = await begin(store, group_id=f"g{number}", mode="train" if number else "val")
        attributes = {"at": datetime(2025, 1, 2, tzinfo=UTC), "\ud800": b"\0", "$x": 2**80}
        odd = span(claim, attributes={"v": attributes, "nan": -math.inf})
        given = Reward(value=0.5, why="no price \ud800\n")
        reward = span(claim, kind=SpanKind.REWARD, reward=given)
        await succeed(store, claim, [model_call(claim), odd, reward])
    failed = await begin(store)
    await store.finish(
        failed.attempt.id,
        status=AttemptStatus.FAILED,
        failure=failure(FailureKind.AGENT),
        output={"bytes": b"\xff"},
    )
    await store.enqueue([rollout()])
    return store


async def everything(store):
    rollouts = await store.rollouts(RolloutQuery())
    spans = {one.id: await store.spans([one.id]) for one in rollouts}
    resources = [await store.resources(version) for version in (1, 2)]
    ordered = [record for one in rollouts for record in (one, *spans[one.id])]
    return [*resources, *ordered]


async def test_a_whole_store_comes_back_record_by_record():
    store = await filled()

    lines = [line async for line in export_lines(store)]

    assert all("\n" not in line for line in lines)
    assert list(read_export(lines)) == await everything(store)
    assert json.loads(lines[0]) == {"kind": "store", "format": 1}
    assert json.loads(lines[-1]) == {"kind": "end", "resources": 2, "rollouts": 5, "spans": 9}
    await store.close()


async def test_a_part_of_a_store_is_what_the_query_says():
    store = await filled()

    lines = [line async for line in export_lines(store, RolloutQuery(mode="val", limit=1))]

    records = list(read_export(lines))
    assert [one.group_id for one in records if isinstance(one, Rollout)] == ["g0"]
    assert len([one for one in records if isinstance(one, Span)]) == 3
    await store.close()


async def test_an_export_that_was_cut_off_or_changed_is_noticed():
    store = await filled()
    lines = [line async for line in export_lines(store)]
    await store.close()

    for broken in (lines[:-1], lines[:-3] + lines[-1:], [*lines, lines[-2]], []):
        with pytest.raises(StoreError, match="incomplete"):
            list(read_export(broken))
    for broken in (lines[1:], [*lines[:2], "{"], [*lines[:2], '{"kind":"cat"}'], ['{"kind":1}']):
        with pytest.raises(StoreError, match=r"Line \d"):
            list(read_export(broken))
    with pytest.raises(StoreError, match=r"Line 1 .*format"):
        list(read_export(['{"kind":"store","format":2}', *lines[1:]]))


async def test_pages_have_every_rollout_once():
    store = MemoryStore()
    await store.open()
    ids = [one.id for one in await store.enqueue([rollout() for _ in range(7)])]
    await store.cancel(ids[:1], reason="test")

    pages = [[one.id for one in page] async for page in rollout_pages(store, size=3)]
    queued = RolloutQuery(statuses=(RolloutStatus.QUEUED,), limit=1)
    left = [one.id async for page in rollout_pages(store, queued, size=2) for one in page]

    assert pages == [ids[:3], ids[3:6], ids[6:]]
    assert left == ids[1:]
    await store.close()

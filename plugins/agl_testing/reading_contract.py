"""The contract of readings of a store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec
import pytest
from agl_reading import (
    SORTS,
    Cursor,
    Reading,
    RolloutRow,
    RowFilter,
    RowQuery,
    Sort,
    SumKind,
    latencies,
)

from agl_core.interfaces import StoreLifecycle
from agl_core.store import MemoryStore
from agl_core.types import (
    AttemptStatus,
    Claim,
    FailureKind,
    Reward,
    RewardTarget,
    RolloutStatus,
    Span,
    SpanKind,
)
from agl_testing import _store_samples as sample
from agl_testing._guard import ContractSuite

Read = Callable[[StoreLifecycle], Awaitable[Reading]]
"""Returns a reading of an open store that knows all its records."""

_SAID = "价格太高,请用GPT模型v2版本。東京タワーへ。고양이가 앉았다. ภาษาไทยไม่เว้นวรรค"
_FOUND = (
    "价格|格太|太高|高|格太高 用|请用gpt|用GPT模|型v2版|模型 版本|本|京タ|ワーへ|"
    "양이|고양이|이가 았다|ไทย|าษาไท|เว้น|ไม่"
)
_NOT_FOUND = "价太|高请|太高请|格太用|gpt本|型v3|タ京|가앉|고이|ทไย"


def _reward(claim: Claim, value: float, **fields: object) -> Span:
    target = RewardTarget(agent=str(fields["agent"])) if "agent" in fields else RewardTarget()
    given = Reward(value=value, target=target, why=str(fields.get("why", "")))
    return sample.span(claim, kind=SpanKind.REWARD, name="reward", reward=given)


class ReadingContract(ContractSuite):
    """Contract suite of a `Reading`; it needs pytest-asyncio in auto mode.

    A subclass supplies the fixture ``read``: an async callable that takes an open store and returns a
    reading that knows all its records::

        class TestMine(ReadingContract):
            @pytest.fixture
            async def read(self, tmp_path):
                async def opened(store): ...
                yield opened

    The fixture ``store`` may be replaced by one of another open, empty store.
    """

    @pytest.fixture
    async def read(self) -> Read:
        """Supplied by the subclass."""
        raise NotImplementedError("Supply the fixture read")

    @pytest.fixture
    async def store(self) -> AsyncGenerator[StoreLifecycle, None]:
        """An open, empty store."""
        store = MemoryStore()
        await store.open()
        yield store
        await store.close()

    async def test_rows_show_status_reward_and_calls(
        self, read: Read, store: StoreLifecycle
    ) -> None:
        ended = await sample.begin(store, step=3, group_id="g")
        await sample.succeed(
            store, ended, [sample.model_call(ended), _reward(ended, 0.5), _reward(ended, 0.25)]
        )
        lost = await sample.begin(store)
        await store.finish(
            lost.attempt.id,
            status=AttemptStatus.FAILED,
            failure=sample.failure(FailureKind.AGENT),
        )
        running = await sample.begin(store)
        (queued,) = await store.enqueue([sample.rollout()])

        rows = await (await read(store)).rows(RowQuery())

        ids = [queued.id, running.rollout.id, lost.rollout.id, ended.rollout.id]
        assert [row.id for row in rows] == ids
        assert [row.status for row in rows] == ["queued", "running", "failed", "succeeded"]
        assert [row.cause for row in rows] == ["", "", "agent", ""]
        assert [row.counted for row in rows] == [False, False, True, True]
        row = rows[-1]
        assert (row.reward, row.channels, row.step) == (0.75, {"main": 0.75}, 3)
        assert (row.calls, row.prompt_tokens, row.sampled_tokens) == (1, 3, 2)
        assert (row.agents, row.group_id, row.task) == (("writer",), "g", "t")
        assert rows[0].reward is None

    async def test_pages_by_place_cover_all_rows_once(
        self, read: Read, store: StoreLifecycle
    ) -> None:
        await _scored(store, [0.5, None, 1.0, 0.5, -1.0, None, 0.5])
        reading: Reading = await read(store)
        for sort in SORTS:
            for descending in (True, False):
                whole = await reading.rows(RowQuery(sort=sort, descending=descending))
                keys = [(row.key(sort), row.id) for row in whole]
                assert keys == sorted(keys, reverse=descending)
                assert len(whole) == 7
                assert await _paged(reading, sort, descending) == whole

    async def test_filters_join(self, read: Read, store: StoreLifecycle) -> None:
        await _scored(store, [0.5, None, 1.0, 0.25])
        reading: Reading = await read(store)

        async def rewards(**fields: object) -> list[float | None]:
            wanted = msgspec.convert(fields, RowFilter)
            rows = await reading.rows(RowQuery(wanted=wanted, sort="step", descending=False))
            return [row.reward for row in rows]

        assert await rewards(least_reward=0.3) == [0.5, 1.0]
        assert await rewards(most_reward=0.5) == [0.5, 0.25]
        assert await rewards(first_step=1, last_step=2) == [None, 1.0]
        assert await rewards(resources_version=2) == [1.0]
        assert await rewards(task="t2") == [1.0]
        (second, *_) = await reading.rows(RowQuery(wanted=RowFilter(task="t2")))
        assert await reading.rows(RowQuery(wanted=RowFilter(id=second.id))) == [second]
        assert await rewards(group_id="g0") == [0.5, 1.0]
        assert await rewards(agent="writer", group_id="g1") == [None, 0.25]
        assert await rewards(agent="unknown") == []
        assert await rewards(run_id="run", mode="train", statuses=(RolloutStatus.SUCCEEDED,)) == [
            0.5,
            None,
            1.0,
            0.25,
        ]
        assert await rewards(run_id="other") == []
        assert await rewards(mode="val") == []
        assert await rewards(cause="agent") == []

    async def test_text_finds_beginnings_of_words_that_were_said(
        self, read: Read, store: StoreLifecycle
    ) -> None:
        await _scored(store, [0.5, None], why="The PRICE is missing: größe 42 \ud800")
        reading: Reading = await read(store)
        (found,) = await reading.rows(RowQuery(wanted=RowFilter(text="missing pri")))
        assert found.reward == 0.5
        for text in ("größe", "4", '"price" AND', "price*", "missing\nthe"):
            expected = 0 if "AND" in text else 1
            assert (await reading.count(RowFilter(text=text, least_reward=0))).number == expected
        assert await reading.rows(RowQuery(wanted=RowFilter(text="rice"))) == []
        assert (await reading.count(RowFilter(text="  "))).number == 2

    async def test_text_finds_letters_in_a_row_where_no_spaces_are(
        self, read: Read, store: StoreLifecycle
    ) -> None:
        await _scored(store, [0.5, None], why=_SAID)
        reading: Reading = await read(store)
        for text in _FOUND.split("|"):
            assert (await reading.count(RowFilter(text=text))).number == 1, text
        for text in _NOT_FOUND.split("|"):
            assert (await reading.count(RowFilter(text=text))).number == 0, text

    async def test_counts_stop_at_their_limit(self, read: Read, store: StoreLifecycle) -> None:
        await _scored(store, [None] * 5)
        reading: Reading = await read(store)
        exact = await reading.count(RowFilter(), most=5)
        capped = await reading.count(RowFilter(), most=4)
        assert (exact.number, exact.capped) == (5, False)
        assert (capped.number, capped.capped) == (4, True)

    async def test_sums_are_by_step_and_name(self, read: Read, store: StoreLifecycle) -> None:
        claim = await sample.begin(store, step=1)
        spans = [
            sample.model_call(claim),
            _reward(claim, 1.0),
            _reward(claim, 0.5, agent="writer"),
        ]
        await sample.succeed(store, claim, spans)
        await _scored(store, [0.5])
        reading: Reading = await read(store)

        async def totals(*kinds: SumKind) -> list[tuple[int, str, str, int, float]]:
            found = await reading.sums(kinds, run_id="run")
            return [(each.step, each.kind, each.name, each.n, each.total) for each in found]

        assert await totals("channel") == [
            (0, "channel", "main", 1, 0.5),
            (1, "channel", "main", 1, 1.5),
        ]
        assert await totals("agent") == [(1, "agent", "writer", 1, 0.5)]
        assert await totals("sampled_tokens") == [
            (0, "sampled_tokens", "writer", 1, 2),
            (1, "sampled_tokens", "writer", 1, 2),
        ]
        assert await totals("rollouts", "edge") == [
            (0, "edge", "\nwriter", 1, 1),
            (0, "rollouts", "succeeded", 1, 1),
            (1, "edge", "\nwriter", 1, 1),
            (1, "rollouts", "succeeded", 1, 1),
        ]
        assert await reading.sums(["rollouts"], run_id="other") == []
        later = await reading.sums(["channel"], run_id="run", first_step=1)
        assert [each.step for each in later] == [1]

    async def test_latencies_are_by_policy_and_agent(
        self, read: Read, store: StoreLifecycle
    ) -> None:
        claim = await sample.begin(store)
        seconds = [0.1] * 18 + [2.0] * 2
        spans = [_call(claim, "writer", "a\nb", each) for each in seconds]
        await sample.succeed(store, claim, [*spans, _call(claim, "critic", "p", 0.5)])
        reading: Reading = await read(store)
        writer, critic = latencies(await reading.sums(["calls", "latency"]))
        assert (writer.agent, writer.policy, writer.calls) == ("writer", "a\nb", 20)
        assert writer.p50_s == pytest.approx(0.1, rel=0.08)
        assert writer.p95_s == pytest.approx(2.0, rel=0.08)
        assert (critic.agent, critic.calls) == ("critic", 1)
        assert critic.p50_s == critic.p95_s == pytest.approx(0.5, rel=0.08)

    async def test_edges_follow_control(self, read: Read, store: StoreLifecycle) -> None:
        claim = await sample.begin(store)
        agent = {"kind": SpanKind.AGENT, "name": "run"}
        planner = sample.span(claim, agent="planner", start_ns=1, end_ns=5, **agent)
        inner = sample.span(
            claim, agent="critic", parent_id=planner.id, start_ns=2, end_ns=3, **agent
        )
        after = sample.span(claim, agent="writer", start_ns=6, end_ns=7, **agent)
        reward = sample.span(claim, agent="@reward", start_ns=8, end_ns=9, **agent)
        await sample.succeed(store, claim, [planner, inner, after, reward])
        reading = await read(store)
        edges = [each.name for each in await reading.sums(["edge"])]
        assert edges == ["\nplanner", "planner\ncritic", "planner\nwriter"]
        (row,) = await reading.rows(RowQuery())
        assert row.agents == ("critic", "planner", "writer")

    async def test_a_name_may_be_any_text(self, read: Read, store: StoreLifecycle) -> None:
        claim = await sample.begin(store)
        odd = sample.span(claim, kind=SpanKind.AGENT, name="a", agent="\ud800';--")
        await sample.succeed(store, claim, [odd])
        (row,) = await (await read(store)).rows(RowQuery())
        assert len(row.agents) == 1


def _call(claim: Claim, agent: str, policy: str, seconds: float) -> Span:
    span = sample.model_call(claim)
    assert span.call is not None
    times = {"started_ns": 10**9, "ended_ns": 10**9 + int(seconds * 1e9)}
    call = msgspec.structs.replace(span.call, agent=agent, policy=policy, **times)
    return msgspec.structs.replace(span, agent=agent, call=call)


async def _scored(store: StoreLifecycle, rewards: list[float | None], *, why: str = "") -> None:
    """Store succeeded rollouts: steps and versions 0, 1, ..., tasks t0, ..., groups g0 and g1."""
    for at, value in enumerate(rewards):
        claim = await sample.begin(
            store,
            step=at,
            resources_version=at,
            group_id=f"g{at % 2}",
            task=sample.Task(id=f"t{at}", input="2+2"),
        )
        scored = [] if value is None else [_reward(claim, value, why=why)]
        await sample.succeed(store, claim, [sample.model_call(claim), *scored])


async def _paged(reading: Reading, sort: Sort, descending: bool) -> list[RolloutRow]:
    found: list[RolloutRow] = []
    place: Cursor | None = None
    while True:
        page = await reading.rows(RowQuery(sort=sort, descending=descending, after=place, limit=2))
        found += page
        if len(page) < 2:
            return found
        place = Cursor.parse(str(Cursor.of(page[-1], sort)))

import asyncio
import contextvars
import functools
import math
import sys
import threading
from decimal import Decimal

import pytest
from agl_testing.attempts import ScriptedAttempt
from hypothesis import given
from hypothesis import strategies as st

from agl_core.errors import ConfigError, RewardError
from agl_core.runner import NamedReward, Scorer, as_rewards
from agl_core.types import Reward, RewardTarget, Score

WHO = contextvars.ContextVar("who", default="nobody")


@pytest.fixture
def record():
    return ScriptedAttempt().record()


def scorer(*functions, channel="main"):
    named = [
        NamedReward(name=f"r{index}", function=function, channel=channel)
        for index, function in enumerate(functions)
    ]
    return Scorer(named)


async def test_rewards_come_in_order_with_channel_and_source(record):
    async def later(task, output, attempt):
        return {"style": 0.5, "facts": 1}

    scored = await scorer(lambda task, output, attempt: output, later, channel="main")(record, 2)

    assert scored == [
        Reward(value=2.0, channel="main", source="r0"),
        Reward(value=0.5, channel="style", source="r1"),
        Reward(value=1.0, channel="facts", source="r1"),
    ]


async def test_functions_get_task_output_and_attempt(record):
    seen = []

    await scorer(lambda *given: seen.append(given) or 1)(record, "out")

    assert seen == [(record.rollout.task, "out", record)]


async def test_plain_functions_run_in_a_thread_with_the_context(record):
    seen = []

    def look(task, output, attempt):
        seen.append((threading.current_thread() is threading.main_thread(), WHO.get()))
        WHO.set("the thread")
        return 1

    token = WHO.set("me")
    await scorer(look)(record, None)

    assert seen == [(False, "me")]
    assert WHO.get() == "me"
    WHO.reset(token)


def test_hung_rewards_neither_block_others_nor_the_end_of_the_loop(record):
    started, release = threading.Semaphore(0), threading.Event()
    scored = []

    def hangs(task, output, attempt):
        started.release()
        release.wait()

    async def score():
        hung = [asyncio.create_task(scorer(hangs)(record, None)) for _ in range(40)]
        scored.extend(await scorer(lambda *_: 1)(record, None))
        for task in hung:
            task.cancel()
        await asyncio.gather(*hung, return_exceptions=True)

    scoring = threading.Thread(target=lambda: asyncio.run(score()), daemon=True)
    try:
        scoring.start()
        assert started.acquire(timeout=10)
        scoring.join(10)
        assert not scoring.is_alive()
    finally:
        release.set()
    assert [reward.value for reward in scored] == [1.0]


async def test_coroutine_functions_share_a_thread_of_their_own_however_they_are_dressed(record):
    threads = []

    async def plain(task, output, attempt):
        threads.append(threading.current_thread())
        return 1

    class Judge:
        async def __call__(self, task, output, attempt):
            return await plain(task, output, attempt)

    async def with_option(task, output, attempt, *, option):
        return await plain(task, output, attempt)

    functions = [
        plain,
        Judge(),
        functools.partial(with_option, option=1),
        lambda task, output, attempt: plain(task, output, attempt),  # noqa: PLW0108 - no coroutine function
    ]
    scored = await scorer(*functions)(record, None)

    assert len(scored) == 4
    assert len(set(threads)) == 1
    assert threading.main_thread() not in threads


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), StopIteration("no"), ConfigError("no")]
)
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
async def test_a_raising_reward_is_named_and_never_stops_the_loop(record, error, kind):
    def plain(task, output, attempt):
        raise error

    async def coroutine(task, output, attempt):
        raise error

    with pytest.raises(RewardError, match="Reward 'r0' raised") as caught:
        await scorer({"plain": plain, "coroutine": coroutine}[kind])(record, None)
    assert caught.value.__cause__ is not None


async def test_a_reward_error_arrives_as_it_is(record):
    error = RewardError("mine")

    def raises(task, output, attempt):
        raise error

    with pytest.raises(RewardError) as caught:
        await scorer(raises)(record, None)
    assert caught.value is error


class Scalar:
    """As arrays of one element are."""

    def __init__(self, value):
        self.value = value

    def __float__(self):
        return self.value


class Vector:
    def __float__(self):
        raise TypeError("only one element")


class Hostile:
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    ("value", "number"),
    [(1, 1.0), (True, 1.0), (False, 0.0), (0.5, 0.5), (Decimal("0.25"), 0.25), (Scalar(2.0), 2.0)],
)
def test_numbers_of_every_kind(value, number):
    (reward,) = as_rewards(value, source="mine", channel="c")

    assert (reward.value, reward.channel, type(reward.value)) == (number, "c", float)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "returned None"),
        ("1.0", "returned '1.0' of type 'str'"),
        (b"1", "type 'bytes'"),
        ([0.5], r"returned \[0\.5\] of type 'list'"),
        ([], "type 'list'"),
        (1j, "type 'complex'"),
        (Vector(), "type 'Vector'"),
        (math.nan, "returned nan"),
        (math.inf, "returned inf"),
        (10**400, r"returned 10+\.\.\. \[321 more characters\] of type 'int'"),
        (Hostile(), "returned <Hostile without a repr> of type 'Hostile'"),
        ({}, "empty mapping"),
        ({"a": None}, "returned None for channel 'a'"),
        ({"a": 1, "b": math.nan}, "returned nan for channel 'b'"),
        ({"a": "x"}, "type 'str' for channel 'a'"),
        ({1: 1.0}, "channel name 1"),
        ({"": 1.0}, "channel name ''"),
        (Reward(value=math.nan), "returned nan"),
        (Reward(value=1, target=RewardTarget(call="c", agent="a")), "name one of"),
        (Reward(value=1, target=RewardTarget(choice=1)), "a choice needs its call"),
        (Reward(value=1, channel=3), "channel 3"),
        (Reward(value=1, why=3), "reason 3"),
        ({"a": "x", "b": Score(1, "y")}, "type 'str' for channel 'a'"),
        (Reward(value=1, target=RewardTarget(agent=0)), "name them with text"),
        ([Reward(value=1), 2], "type 'list'"),
        ("x" * 500, r"x\.\.\. \[422 more characters\] of type"),
    ],
)
def test_what_is_no_reward_names_function_value_and_fix(value, reason):
    with pytest.raises(RewardError, match=reason) as caught:
        as_rewards(value, source="mine", channel="main")
    assert "'mine'" in str(caught.value)


def test_rewards_for_calls_and_agents_are_passed_through():
    aimed = Reward(value=True, channel="style", target=RewardTarget(call="c", choice=1))
    named = Reward(value=2, source="judge")

    assert as_rewards([aimed, named], source="mine", channel="main") == [
        Reward(value=1.0, channel="style", target=aimed.target, source="mine"),
        Reward(value=2.0, source="judge"),
    ]
    assert as_rewards(named, source="mine", channel="main") == [named]


def test_every_channel_and_target_keeps_its_own_reason():
    aimed = RewardTarget(agent="writer")
    given = [Reward(value=Score(0.5, "of the score"), target=aimed), Reward(value=1, why="own")]

    assert as_rewards(Score(0.2, "no price"), source="s", channel="c") == [
        Reward(value=0.2, channel="c", source="s", why="no price")
    ]
    assert as_rewards({"a": Score(1, "both"), "b": 0.5}, source="s", channel="c") == [
        Reward(value=1.0, channel="a", source="s", why="both"),
        Reward(value=0.5, channel="b", source="s"),
    ]
    made = as_rewards(given, source="s", channel="c")
    assert made == [
        Reward(value=0.5, target=aimed, source="s", why="of the score"),
        Reward(value=1.0, source="s", why="own"),
    ]
    assert {type(reward.value) for reward in made} == {float}


async def test_a_score_that_is_none_fails_as_the_reward_it_is(record):
    with pytest.raises(RewardError, match=r"Score\(None, 'lost'\): give a finite number"):
        await scorer(lambda *_: Score(None, "lost"))(record, None)


@given(
    st.dictionaries(
        st.text(min_size=1), st.floats(allow_nan=False, allow_infinity=False), min_size=1
    )
)
def test_mappings_keep_every_channel(values):
    rewards = as_rewards(values, source="s", channel="main")

    assert {reward.channel: reward.value for reward in rewards} == values


@pytest.mark.parametrize(
    "function", [lambda task, output: 1, lambda task, output, attempt, more: 1, lambda: 1, "text"]
)
def test_a_wrong_signature_is_found_before_anything_runs(function):
    with pytest.raises(ConfigError, match="'r0'"):
        scorer(function)


def test_functions_without_a_signature_are_taken_at_their_word():
    assert scorer(min)
    assert scorer(sys.getsizeof)


def test_two_rewards_of_one_name_are_refused():
    reward = NamedReward(name="same", function=lambda task, output, attempt: 1)

    with pytest.raises(ConfigError, match="'same'"):
        Scorer([reward, reward])

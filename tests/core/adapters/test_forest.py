import random

import pytest
from agl_testing.attempts import TRAINED
from agl_testing.bandit import make_triplet
from hypothesis import given
from hypothesis import strategies as st

from agl_core.adapters import TrajectoryAdapter, forest
from agl_core.errors import TrainingError
from agl_core.interfaces import CreditedCall
from agl_core.types import CallCredit
from tests.core.adapters.strategies import attempts


def credited(triplet, *, group=0, advantage=1.0, weight=1.0):
    length = len(triplet.response_ids)
    credit = CallCredit(
        call_id=triplet.call_id,
        choice=triplet.choice,
        advantages=[advantage] * length,
        weights=[weight] * length,
    )
    return CreditedCall(triplet=triplet, credit=credit, group=group)


def call(call_id, prompt, response, **fields):
    return make_triplet(call_id, response, prompt_ids=list(prompt), **fields)


def build(*calls):
    return forest(calls, policy="p", step=3)


def path_of(batch, node):
    ids = []
    while node >= 0:
        ids.append(batch.tokens[node])
        node = batch.parents[node]
    return ids[::-1]


def expand(batch):
    """Every sequence of the batch, token by token, from its terms alone."""
    sequences = {}
    for node, target, at in zip(batch.nodes, batch.targets, batch.calls, strict=True):
        sequences.setdefault(at, []).append([*path_of(batch, node), target])
    return sequences


def check_layout(batch):
    subtree_end = {}
    for node, parent in enumerate(batch.parents):
        assert parent < node
        expected = 0 if parent < 0 else batch.positions[parent] + 1
        assert batch.positions[node] == expected
    for node in reversed(range(len(batch.tokens))):
        subtree_end.setdefault(node, node)
        parent = batch.parents[node]
        if parent >= 0:
            subtree_end[parent] = max(subtree_end.get(parent, parent), subtree_end[node])
    for node, parent in enumerate(batch.parents):
        if parent >= 0:
            assert node <= subtree_end[parent]
            between = range(parent + 1, node)
            assert all(_descends(batch, other, parent) for other in between)
    siblings = list(zip(batch.parents, batch.tokens, strict=True))
    assert len(set(siblings)) == len(siblings)


def _descends(batch, node, ancestor):
    while node > ancestor:
        node = batch.parents[node]
    return node == ancestor


def test_one_call():
    batch = build(credited(call("a", [7, 8], [1, 2, 3]), advantage=0.5, weight=2.0))
    assert list(batch.tokens) == [7, 8, 1, 2]
    assert list(batch.parents) == [-1, 0, 1, 2]
    assert list(batch.positions) == [0, 1, 2, 3]
    assert list(batch.nodes) == [1, 2, 3]
    assert list(batch.targets) == [1, 2, 3]
    assert list(batch.advantages) == [0.5] * 3
    assert list(batch.weights) == [2.0] * 3
    assert list(batch.logprobs) == [-1.0] * 3
    assert list(batch.temperatures) == [1.0] * 3
    assert list(batch.calls) == [0, 0, 0]
    assert (batch.call_ids, batch.versions, list(batch.groups)) == (("a",), (0,), [0])
    assert (batch.policy, batch.step) == ("p", 3)


def test_types_of_the_arrays():
    batch = build(credited(call("a", [7], [1])))
    ints = (batch.tokens, batch.parents, batch.positions, batch.nodes, batch.targets)
    assert {stream.typecode for stream in (*ints, batch.calls, batch.groups)} == {"i"}
    reals = (batch.advantages, batch.weights, batch.logprobs, batch.temperatures)
    assert {stream.typecode for stream in reals} == {"f"}


def test_shared_tokens_are_held_once_and_terms_apart():
    batch = build(
        credited(call("a", [7, 8], [1, 2], ordinal=0), advantage=1.0),
        credited(call("b", [7, 8], [1, 3], ordinal=1), advantage=-1.0),
    )
    assert list(batch.tokens) == [7, 8, 1]
    assert list(batch.nodes) == [1, 2, 1, 2]
    assert list(batch.targets) == [1, 2, 1, 3]
    assert list(batch.advantages) == [1.0, 1.0, -1.0, -1.0]


def test_a_next_turn_extends_the_path():
    batch = build(
        credited(call("a", [7], [1, 2], ordinal=0)),
        credited(call("b", [7, 1, 2, 8], [3], ordinal=1)),
    )
    assert list(batch.tokens) == [7, 1, 2, 8]
    assert expand(batch) == {0: [[7, 1], [7, 1, 2]], 1: [[7, 1, 2, 8, 3]]}


def test_each_step_trains_its_own_tokens():
    """Advantage 0.5; the first turn sampled places 1-3, the second places 4-5."""
    batch = build(
        credited(call("a", [0], [11, 12, 13], ordinal=0), advantage=0.5),
        credited(call("b", [0, 11, 12, 13], [14, 15], ordinal=1), advantage=0.5),
    )
    masked = {0: [0.0] * 6, 1: [0.0] * 6}
    for node, at, advantage in zip(batch.nodes, batch.calls, batch.advantages, strict=True):
        masked[at][batch.positions[node] + 1] = advantage
    assert masked == {0: [0, 0.5, 0.5, 0.5, 0, 0], 1: [0, 0, 0, 0, 0.5, 0.5]}


def test_tokens_of_weight_zero_give_no_term():
    credit = CallCredit(call_id="a", choice=0, advantages=[1.0, 2.0], weights=[0.0, 1.0])
    batch = build(CreditedCall(triplet=call("a", [7], [1, 2]), credit=credit, group=0))
    assert (list(batch.nodes), list(batch.targets), list(batch.advantages)) == ([1], [2], [2.0])


def test_a_call_without_weight_leaves_no_trace():
    batch = build(
        credited(call("a", [7], [1])), credited(call("b", [8], [2], ordinal=1), weight=0.0)
    )
    assert batch.call_ids == ("a",)
    assert list(batch.tokens) == [7]


def test_each_call_keeps_its_temperature_and_version():
    batch = build(
        credited(call("a", [7], [1], temperature=0.5, policy_version=3)),
        credited(call("b", [8], [2], ordinal=1, temperature=1.0, policy_version=4), group=1),
    )
    assert list(batch.temperatures) == [0.5, 1.0]
    assert batch.versions == (3, 4)
    assert list(batch.groups) == [0, 1]


def test_counts():
    batch = build(
        credited(call("a", [7, 8], [1, 2], attempt_id="at1")),
        credited(call("b", [7, 8], [3], attempt_id="at2"), group=1),
    )
    assert batch.stats == {
        "groups": 2,
        "attempts": 2,
        "calls": 2,
        "tokens_sampled": 3,
        "tokens_flat": 5,
        "tokens_unique": 3,
    }


@pytest.mark.parametrize("calls", [(), (credited(call("a", [7], [1]), weight=0.0),)])
def test_nothing_to_train_on_is_an_error(calls):
    with pytest.raises(TrainingError, match="nothing to train policy 'p'"):
        build(*calls)


def test_misaligned_streams_are_an_error():
    credit = CallCredit(call_id="a", choice=0, advantages=[1.0], weights=[1.0, 1.0])
    with pytest.raises(TrainingError, match=r"'a'.*\[2, 1, 2\]"):
        build(CreditedCall(triplet=call("a", [7], [1, 2]), credit=credit, group=0))


def test_an_empty_prompt_is_an_error():
    with pytest.raises(TrainingError, match="0 prompt ids"):
        build(credited(call("a", [], [1])))


@given(st.lists(attempts(), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_every_path_expands_to_exactly_prompt_and_response(drawn, shuffle):
    calls = []
    for number, attempt in enumerate(drawn):
        attempt.reward(1.0)
        adapted = TrajectoryAdapter(["*"], policies=[TRAINED]).adapt(attempt.record())
        calls += [
            credited(triplet, group=number)
            for paths in adapted.trajectories.values()
            for path in paths
            for triplet in path.calls
        ]
    batch = build(*calls)
    check_layout(batch)
    expected = sorted(
        [*item.triplet.prompt_ids, *item.triplet.response_ids[: at + 1]]
        for item in calls
        for at in range(len(item.triplet.response_ids))
    )
    assert sorted(path for paths in expand(batch).values() for path in paths) == expected
    prefixes = {tuple(path[:end]) for path in expected for end in range(1, len(path))}
    assert len(batch.tokens) == len(prefixes)
    if len(drawn) == 1:
        shuffle.shuffle(calls)
        assert build(*calls) == batch


def test_time_grows_with_the_tokens():
    """A long shared trunk with many branches is laid out once, not once per branch."""
    trunk = [random.Random(1).randrange(1000) for _ in range(3000)]
    calls = [credited(call(f"c{at}", [*trunk, at], [at % 7, 1, 2], ordinal=at)) for at in range(48)]
    batch = build(*calls)
    assert batch.stats["tokens_unique"] == 3000 + 48 * 3
    assert batch.stats["tokens_flat"] == 48 * 3003

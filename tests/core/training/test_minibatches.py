from hypothesis import given
from hypothesis import strategies as st

from agl_core.training._batcher import group_minibatches

GROUPS = st.lists(st.integers(0, 30), min_size=1, max_size=40)


@given(GROUPS, st.integers(1, 12), st.text())
def test_every_group_is_in_one_minibatch_of_about_the_same_size(groups, count, order):
    parts = group_minibatches(groups, count, order=order)
    assert sorted(group for part in parts for group in part) == sorted(set(groups))
    assert len(parts) == min(count, len(set(groups)))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert group_minibatches(groups, count, order=order) == parts


def test_one_minibatch_keeps_the_order():
    assert group_minibatches([2, 0, 1, 0], 1, order="1/2/3") == [[0, 1, 2]]


def test_the_order_depends_on_its_seed():
    permutations = {
        tuple(map(tuple, group_minibatches(range(9), 3, order=str(at)))) for at in range(9)
    }
    assert len(permutations) > 1


def test_no_groups_make_no_minibatch():
    assert group_minibatches([], 3, order="") == []

"""Rows hold what was recorded, every loss term once, whatever the forest looks like."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from agl_testing.attempts import ScriptedAttempt
from agl_verl.convert import rows_of
from hypothesis import given
from hypothesis import strategies as st

from agl_core.errors import TrainingError
from agl_core.types import Sampling
from tests.trainers.verl.convert_cases import FEW, Counted, case_of, cases, paths_of, terms_of

LEVELS = ["merged", "transition"]


def cut(batch, level, *, max_tokens=None, overlong="drop", groups=None):
    return rows_of(batch, level=level, max_tokens=max_tokens, overlong=overlong, groups=groups)


def script(*calls, name="1", reward=1.0, group="g"):
    """An attempt of (agent, prompt, response) or (agent, prompt, response, temperature)."""
    attempt = ScriptedAttempt(name, group=group, task=group)
    for agent, prompt, response, *temperature in calls:
        sampling = Sampling(temperature=temperature[0] if temperature else 1.0)
        attempt.call(agent, prompt, response, sampling=sampling)
    attempt.reward(reward)
    return attempt.record()


def plain(*scripts):
    return case_of(list(scripts), Counted()).batch


def seen(row):
    return [*row.prompt.tolist(), "|", *row.response.tolist()]


@FEW
@given(cases(), st.sampled_from(LEVELS))
def test_every_term_is_in_exactly_one_row(case, level):
    rows = cut(case.batch, level)
    expected = Counter(term for terms in paths_of(case.batch).values() for term in terms)
    assert Counter(term for row in rows.rows for term in terms_of(row)) == expected
    assert sorted(call for row in rows.rows for call in row.calls) == list(
        range(len(case.batch.call_ids))
    )
    assert rows.lost == {}
    assert rows.weight == pytest.approx(sum(case.batch.weights))


@FEW
@given(cases(), st.sampled_from(LEVELS))
def test_tokens_are_those_recorded_of_its_calls(case, level):
    triplets = case.triplets
    for row in cut(case.batch, level).rows:
        tokens = (*row.prompt.tolist(), *row.response.tolist())
        trained = 0
        for call in row.calls:
            terms = paths_of(case.batch)[call]
            whole = (*triplets[call].prompt_ids, *triplets[call].response_ids)
            end = max(len(path) for path, *_ in terms)
            assert tokens[:end] == whole[:end]
            trained += len(terms)
        assert len(tokens) == end
        assert len(row.prompt) >= 1
        assert row.mask[0]
        assert row.mask[-1]
        assert int(row.mask.sum()) == trained
        for stream in (row.advantages, row.weights, row.logprobs):
            assert stream.shape == row.response.shape
            assert not stream[~row.mask].any()


@FEW
@given(cases())
def test_no_fewer_rows_could_hold_the_terms(case):
    terms = paths_of(case.batch)
    goes_on = {
        first: [
            second
            for second in terms
            if terms[second][0][0][:-1][: len(terms[first][-1][0])] == terms[first][-1][0]
            and terms[first][0][4] == terms[second][0][4]
        ]
        for first in terms
    }
    assert len(cut(case.batch, "merged").rows) == len(terms) - matching(goes_on)


def matching(goes_on):
    """Size of the largest matching, by augmenting paths."""
    taken = {}

    def augment(first, tried):
        for second in goes_on[first]:
            if second in tried:
                continue
            tried.add(second)
            if second not in taken or augment(taken[second], tried):
                taken[second] = first
                return True
        return False

    return sum(augment(first, set()) for first in goes_on)


@FEW
@given(cases(), st.sampled_from(LEVELS), st.integers(2, 8))
def test_what_is_too_long_is_dropped_and_counted_and_nothing_else(case, level, limit):
    terms = paths_of(case.batch)
    kept = {call for call in terms if len(terms[call][-1][0]) <= limit}
    rows = cut(case.batch, level, max_tokens=limit)
    found = Counter(term for row in rows.rows for term in terms_of(row))
    assert found == Counter(term for call in kept for term in terms[call])
    assert all(len(row) <= limit for row in rows.rows)
    expected = Counter(case.batch.agents[call] for call in set(terms) - kept)
    assert rows.lost == {agent: {"row_too_long": n} for agent, n in expected.items()}
    assert rows.weight == pytest.approx(sum(term[2] for call in kept for term in terms[call]))


@FEW
@given(cases(), st.sampled_from(LEVELS))
def test_minibatches_of_groups_are_apart(case, level):
    groups = set(case.batch.groups)
    parts = [cut(case.batch, level, groups=[group]) for group in groups]
    found = Counter(term for part in parts for row in part.rows for term in terms_of(row))
    assert found == Counter(term for terms in paths_of(case.batch).values() for term in terms)
    for group, part in zip(groups, parts, strict=True):
        calls = [call for row in part.rows for call in row.calls]
        assert {case.batch.groups[call] for call in calls} == {group}


@FEW
@given(cases(), st.sampled_from(LEVELS))
def test_rows_are_counted_per_agent(case, level):
    rows = cut(case.batch, level)
    expected = defaultdict(int)
    for row in rows.rows:
        for agent in {case.batch.agents[call] for call in row.calls}:
            expected[agent] += 1
    assert rows.by_agent == expected


def test_a_conversation_is_one_merged_row():
    batch = plain(script(("a", [7], [1, 2]), ("a", [7, 1, 2, 8], [3])))
    (row,) = cut(batch, "merged").rows
    assert seen(row) == [7, "|", 1, 2, 8, 3]
    assert row.mask.tolist() == [True, True, False, True]
    assert row.advantages.tolist() == [1.0, 1.0, 0.0, 2.0]
    assert [seen(row) for row in cut(batch, "transition").rows] == [
        [7, "|", 1, 2],
        [7, 1, 2, 8, "|", 3],
    ]


def test_agents_that_share_a_conversation_share_a_row_with_their_own_advantages():
    batch = plain(script(("a", [7], [1]), ("b", [7, 1], [2]), ("a", [7, 1, 2, 8], [3])))
    (row,) = cut(batch, "merged").rows
    assert seen(row) == [7, "|", 1, 2, 8, 3]
    by_agent = {
        agent: [row.advantages[at] for at, call in zip([0, 1, 3], row.calls, strict=True)
                if batch.agents[call] == agent]
        for agent in "ab"
    }  # fmt: skip
    assert by_agent == {"a": [1.0, 2.0], "b": [3.0]}
    assert cut(batch, "merged").by_agent == {"a": 1, "b": 1}


def test_calls_with_one_prompt_and_one_answer_both_stay():
    batch = plain(script(("a", [7, 8], [1, 2]), ("a", [7, 8], [1, 2])))
    rows = cut(batch, "merged").rows
    assert [seen(row) for row in rows] == [[7, 8, "|", 1, 2]] * 2
    assert [set(row.advantages) for row in rows] == [{1.0}, {2.0}]


def test_a_branch_goes_on_in_one_row_and_is_context_in_the_other():
    batch = plain(script(("a", [7], [1]), ("a", [7, 1, 8], [2]), ("a", [7, 1, 9], [3])))
    rows = cut(batch, "merged").rows
    assert [(seen(row), row.mask.tolist()) for row in rows] == [
        ([7, "|", 1, 8, 2], [True, False, True]),
        ([7, 1, 9, "|", 3], [True]),
    ]


def test_siblings_of_one_call_have_rows_of_their_own():
    attempt = ScriptedAttempt(group="g")
    attempt.call("a", [7], [1, 2], [3])
    attempt.call("a", [7, 3, 8], [4])
    attempt.reward(1.0)
    rows = cut(case_of([attempt.record()], Counted()).batch, "merged").rows
    assert [seen(row) for row in rows] == [[7, "|", 1, 2], [7, "|", 3, 8, 4]]


def test_a_row_has_one_temperature():
    batch = plain(script(("a", [7], [1], 0.5), ("a", [7, 1, 8], [2], 1.0), ("a", [7, 1, 8, 2, 9], [3], 0.5)))  # fmt: skip
    rows = cut(batch, "merged").rows
    assert [(seen(row), row.temperature) for row in rows] == [
        ([7, "|", 1, 8, 2, 9, 3], 0.5),
        ([7, 1, 8, "|", 2], 1.0),
    ]


def test_greedy_choices_count_as_temperature_one():
    batch = plain(script(("a", [7], [1]), ("a", [7, 1, 8], [2])))
    batch.temperatures[0] = 0.0
    (row,) = cut(batch, "merged").rows
    assert row.temperature == 1.0


def test_a_rollout_of_one_call_beside_one_of_forty():
    history, calls = [5], []
    for turn in range(40):
        calls.append(("a", list(history), [turn % 4]))
        history += [turn % 4, 9]
    batch = plain(script(*calls, name="1"), script(("a", [5], [3]), name="2"))
    assert [len(row) for row in cut(batch, "merged").rows] == [80, 2]
    assert len(cut(batch, "transition").rows) == 41


def test_the_late_turn_that_overflows_is_lost_alone():
    batch = plain(script(("a", [7], [1]), ("a", [7, 1, 8], [2]), ("b", [7, 1, 8, 2, 9, 9], [3])))
    rows = cut(batch, "merged", max_tokens=5)
    assert [seen(row) for row in rows.rows] == [[7, "|", 1, 8, 2]]
    assert rows.rows[0].advantages.tolist() == [1.0, 0.0, 2.0]
    assert rows.lost == {"b": {"row_too_long": 1}}
    assert rows.weight == 2.0


def test_the_error_names_call_length_and_limit():
    batch = plain(script(("a", [7], [1]), ("b", [7, 1, 8], [2])))
    with pytest.raises(TrainingError, match=r"'call_at_1_2' of agent 'b' is 4 tokens .* hold 3"):
        cut(batch, "merged", max_tokens=3, overlong="error")


def test_when_nothing_fits_there_is_no_row_and_no_weight():
    batch = plain(script(("a", [7, 8, 9], [1])))
    rows = cut(batch, "transition", max_tokens=2)
    assert (rows.rows, rows.weight, rows.by_agent) == ([], 0.0, {})


@pytest.mark.parametrize("name", ["advantages", "weights", "logprobs", "temperatures"])
def test_numbers_that_are_not_finite_are_refused(name):
    batch = plain(script(("a", [7], [1])))
    getattr(batch, name)[0] = np.nan
    with pytest.raises(TrainingError, match=f"{name} of call 'call_at_1_0' are not finite"):
        cut(batch, "merged")


def test_equal_batches_give_equal_rows():
    batch = plain(script(("a", [7], [1]), ("a", [7], [1]), ("a", [7, 1], [2])))
    first, second = cut(batch, "merged"), cut(batch, "merged")
    assert [(seen(row), row.calls) for row in first.rows] == [
        (seen(row), row.calls) for row in second.rows
    ]

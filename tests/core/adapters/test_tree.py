from agl_testing.attempts import TRAINED, CallOptions, ScriptedAttempt
from hypothesis import given

from agl_core.adapters import AgentSelector, TrajectoryAdapter, join, link
from tests.core.adapters.strategies import attempts


def samples(attempt, agent="a"):
    joined = join(attempt.record(), agents=AgentSelector(["*"]), policies=[TRAINED])
    return link([call for call in joined.calls if call.agent == agent])


def paths(attempt, agent="a"):
    """Each path as (token ids, trained token ids)."""
    attempt.reward(1.0)
    adapted = TrajectoryAdapter(["*"], policies=[TRAINED]).adapt(attempt.record())
    return [
        (
            path.token_ids.tolist(),
            [id_ for id_, at in zip(path.token_ids, path.call_index, strict=True) if at >= 0],
        )
        for path in adapted.trajectories[agent]
    ]


def test_a_conversation_is_one_path():
    attempt = ScriptedAttempt()
    attempt.call("a", [1, 2], [3, 4])
    attempt.call("a", [1, 2, 3, 4, 5], [6])
    attempt.call("a", [1, 2, 3, 4, 5, 6, 7], [8])
    assert paths(attempt) == [([1, 2, 3, 4, 5, 6, 7, 8], [3, 4, 6, 8])]


def test_a_prompt_that_is_exactly_the_path_goes_on():
    attempt = ScriptedAttempt()
    attempt.call("a", [1], [2])
    attempt.call("a", [1, 2], [3])
    assert paths(attempt) == [([1, 2, 3], [2, 3])]


def test_edited_history_starts_a_path_of_its_own():
    attempt = ScriptedAttempt()
    attempt.call("a", [1, 2], [3, 4])
    attempt.call("a", [1, 2, 3, 9, 5], [6])
    assert paths(attempt) == [([1, 2, 3, 4], [3, 4]), ([1, 2, 3, 9, 5, 6], [6])]


def test_truncated_history_starts_a_path_of_its_own():
    attempt = ScriptedAttempt()
    attempt.call("a", [1, 2], [3, 4])
    attempt.call("a", [1, 2, 3], [6])
    assert paths(attempt) == [([1, 2, 3, 4], [3, 4]), ([1, 2, 3, 6], [6])]


def test_branches_share_context_and_train_it_once():
    attempt = ScriptedAttempt()
    attempt.call("a", [1], [2])
    attempt.call("a", [1, 2, 3], [4])
    attempt.call("a", [1, 2, 5], [6])
    assert paths(attempt) == [([1, 2, 3, 4], [2, 4]), ([1, 2, 5, 6], [6])]


def test_a_repeated_prompt_keeps_both_answers():
    attempt = ScriptedAttempt()
    attempt.call("a", [1], [2])
    attempt.call("a", [1], [3])
    assert paths(attempt) == [([1, 2], [2]), ([1, 3], [3])]


def test_the_longest_match_is_the_predecessor():
    attempt = ScriptedAttempt()
    attempt.call("a", [1], [2], [2, 3])
    attempt.call("a", [1, 2, 3, 4], [5])
    first, second, last = samples(attempt)
    assert last.before is second
    assert (first.continued, second.continued) == (False, True)


def test_siblings_are_leaves_and_the_continued_choice_keeps_the_path():
    attempt = ScriptedAttempt()
    attempt.call("a", [1], [2], [3], [4])
    attempt.call("a", [1, 3, 5], [6])
    assert paths(attempt) == [
        ([1, 2], [2]),
        ([1, 3, 5, 6], [3, 6]),
        ([1, 4], [4]),
    ]


def test_without_a_successor_no_choice_of_several_is_continued():
    attempt = ScriptedAttempt()
    attempt.call("a", [1], [2], [3])
    attempt.call("a", [4], [5])
    assert [sample.continued for sample in samples(attempt)] == [False, False, True]


def test_of_equal_choices_only_the_first_is_continued():
    attempt = ScriptedAttempt()
    attempt.call("a", [1], [2], [2])
    attempt.call("a", [1, 2, 3], [4])
    assert [sample.continued for sample in samples(attempt)] == [True, False, True]


def test_parallel_runs_with_equal_tokens_keep_their_own_paths():
    attempt = ScriptedAttempt()
    for run in ("r1", "r2"):
        attempt.call("a", [1], [2], options=CallOptions(run=run))
    for run in ("r2", "r1"):
        attempt.call("a", [1, 2, 3], [4], options=CallOptions(run=run))
    assert [sample.before and sample.before.joined.agent_run_id for sample in samples(attempt)] == [
        None,
        None,
        "r2",
        "r1",
    ]


def test_repeated_conversations_without_run_ids_do_not_pile_up():
    attempt = ScriptedAttempt()
    attempt.call("a", [1], [2])
    attempt.call("a", [1], [2])
    attempt.call("a", [1, 2, 3], [4])
    attempt.call("a", [1, 2, 3], [5])
    assert paths(attempt) == [([1, 2, 3, 4], [2, 4]), ([1, 2, 3, 5], [2, 5])]


def test_the_call_sees_its_own_reward():
    attempt = ScriptedAttempt()
    first = attempt.call("a", [1], [2])
    attempt.call("a", [1, 2, 3], [4])
    attempt.reward(0.5, call=first)
    attempt.reward(0.25, call=first, channel="style")
    adapter = TrajectoryAdapter(["*"], policies=[TRAINED], channel_weights={"style": 2.0})
    (path,) = adapter.adapt(attempt.record()).trajectories["a"]
    assert [triplet.reward for triplet in path.calls] == [1.0, None]


@given(attempts())
def test_links_follow_exact_ids_and_nothing_else(attempt):
    for agent in "ab":
        linked = samples(attempt, agent)
        for at, sample in enumerate(linked):
            prompt = sample.joined.call.prompt_token_ids
            matches = [
                other
                for other in linked[:at]
                if other.call_id != sample.call_id and prompt[: len(_full(other))] == _full(other)
            ]
            longest = max((len(_full(other)) for other in matches), default=0)
            assert (sample.before is None) == (not matches)
            if sample.before is not None:
                assert sample.before in matches
                assert len(_full(sample.before)) == longest


def _full(sample):
    return sample.joined.call.prompt_token_ids + sample.choice.token_ids


@given(attempts())
def test_masks_align_token_by_token(attempt):
    attempt.reward(1.0)
    adapted = TrajectoryAdapter(["*"], policies=[TRAINED]).adapt(attempt.record())
    trained = 0
    for of_agent in adapted.trajectories.values():
        for path in of_agent:
            assert len(path.token_ids) == len(path.call_index) == len(path.logprobs)
            for index, triplet in enumerate(path.calls):
                at = [i for i, owner in enumerate(path.call_index) if owner == index]
                start = len(triplet.prompt_ids)
                assert at == list(range(start, start + len(triplet.response_ids)))
                assert path.token_ids[:start] == triplet.prompt_ids
                assert [path.token_ids[i] for i in at] == triplet.response_ids.tolist()
                assert [path.logprobs[i] for i in at] == triplet.logprobs.tolist()
                trained += len(at)
    sampled = sum(
        len(choice.token_ids) for span in attempt.spans if span.call for choice in span.call.choices
    )
    assert trained == sampled

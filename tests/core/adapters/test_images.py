"""Images in prompts: paths are shared exactly where the model was shown the same."""

from itertools import takewhile

import msgspec
import pytest
from agl_records._untrained import adapt_untrained
from agl_testing.attempts import TRAINED, ScriptedAttempt
from agl_testing.bandit import make_triplet
from hypothesis import given
from hypothesis import strategies as st

from agl_core.adapters import TrajectoryAdapter, forest
from agl_core.adapters._images import ImageNumbers
from agl_core.errors import CaptureError
from agl_core.interfaces import CreditedCall
from agl_core.types import CallCredit, Image, pack_ints

MARK = 99
RED, BLUE = "data:image/png;base64,cmVk", "data:image/png;base64,Ymx1ZQ=="


def shown(*urls, text="Look."):
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]


def adapt(attempt):
    attempt.reward(1.0)
    adapter = TrajectoryAdapter(["writer"], policies=[TRAINED])
    return adapter.adapt(attempt.record())


def see(attempt, prompt, response, *urls, **fields):
    messages = shown(*urls) if urls else [{"role": "user", "content": "Look."}]
    return attempt.call(
        "writer", prompt, response, **{"messages": messages, "image_token": MARK, **fields}
    )


def credited(triplet):
    length = len(triplet.response_ids)
    credit = CallCredit(
        call_id=triplet.call_id, choice=0, advantages=[1.0] * length, weights=[1.0] * length
    )
    return CreditedCall(triplet=triplet, credit=credit, group=0)


def test_images_are_found_where_their_tokens_are():
    attempt = ScriptedAttempt()
    see(attempt, [1, MARK, MARK, 2, MARK, 3], [4], RED, BLUE)
    (trajectory,) = adapt(attempt).trajectories["writer"]
    assert trajectory.token_ids.tolist() == [1, MARK, MARK, 2, MARK, 3, 4]
    assert trajectory.calls[0].images == [
        Image(url=RED, start=1, length=2),
        Image(url=BLUE, start=4, length=1),
    ]


def test_a_later_call_goes_on_where_it_was_shown_the_same():
    attempt = ScriptedAttempt()
    see(attempt, [1, MARK, 2], [3], RED)
    see(attempt, [1, MARK, 2, 3, MARK, 4], [5], RED, BLUE)
    adapted = adapt(attempt)
    assert [len(path.calls) for path in adapted.trajectories["writer"]] == [2]


def test_equal_ids_of_another_image_begin_a_path_of_their_own():
    attempt = ScriptedAttempt()
    see(attempt, [1, MARK, 2], [3], RED)
    see(attempt, [1, MARK, 2, 3, 4], [5], BLUE)
    adapted = adapt(attempt)
    assert [len(path.calls) for path in adapted.trajectories["writer"]] == [1, 1]


@pytest.mark.parametrize(
    ("prompt", "response", "urls", "fields", "words"),
    [
        ([1, 2], [3], [RED], {}, "shows the model 1 images, .* tokens of 0"),
        ([MARK, 1, MARK], [3], [RED], {}, "1 images, .* tokens of 2"),
        ([1, MARK], [3], [], {}, "0 images, .* tokens of 1 .*marks of an image out of texts"),
        ([1, MARK], [MARK], [RED], {}, "answered with an image's placeholder"),
        ([1, MARK], [3], ["https://example.com/a.png"], {}, "example.com.*data: URL"),
        ([1, MARK], [3], [RED], {"image_token": None}, "'image_url'.*placeholder alone"),
    ],
)
def test_what_the_model_saw_must_be_known(prompt, response, urls, fields, words):
    attempt = ScriptedAttempt()
    call_id = see(attempt, prompt, response, *urls, **fields)
    with pytest.raises(CaptureError, match=words) as caught:
        adapt(attempt)
    assert call_id in str(caught.value)


def test_other_media_are_refused_of_a_model_that_sees():
    attempt = ScriptedAttempt()
    part = {"type": "input_audio", "input_audio": {"data": ""}}
    see(attempt, [1, MARK], [3], messages=[{"role": "user", "content": [part]}])
    with pytest.raises(CaptureError, match="'input_audio'"):
        adapt(attempt)


def test_an_agent_that_is_not_trained_may_show_anything():
    attempt = ScriptedAttempt()
    see(attempt, [1, 2], [3], RED)
    attempt.reward(1.0)
    adapter = TrajectoryAdapter(["planner"], policies=[TRAINED])
    assert not adapter.adapt(attempt.record()).trajectories


def test_of_rollouts_that_train_nobody_paths_are_those_of_what_was_shown():
    attempt = ScriptedAttempt(mode="val")
    see(attempt, [1, MARK, 2], [3], RED)
    see(attempt, [1, MARK, 2, 3, 4], [5], BLUE)
    see(attempt, [1, MARK, 2, 3, 4], [5], "https://example.com/a.png")
    attempt.reward(1.0)
    adapted = adapt_untrained(
        attempt.record(), agents=["writer"], policies=[TRAINED], channel_weights={}
    )
    assert [len(path.calls) for path in adapted.trajectories["writer"]] == [1, 1]
    assert adapted.losses.counts["calls_without_tokens"] == 1


def test_a_batch_holds_each_image_once():
    one = make_triplet("a", [3, 4], prompt_ids=[1, MARK, MARK, 2])
    two = make_triplet("b", [5, 6], prompt_ids=[1, MARK, MARK, 2])
    other = make_triplet("c", [3, 4], prompt_ids=[1, MARK, MARK, 2])
    at = {"start": 1, "length": 2}
    calls = [
        credited(with_images(one, Image(url=RED, **at))),
        credited(with_images(two, Image(url=RED, **at))),
        credited(with_images(other, Image(url=BLUE, **at))),
    ]
    batch = forest(calls, policy="p", step=1)
    assert batch.images == (RED, BLUE)
    assert list(batch.tokens) == [1, -1, -1, 2, 3, 5, -2, -2, 2, 3]
    assert list(batch.parents) == [-1, 0, 1, 2, 3, 3, 0, 6, 7, 8]


def with_images(triplet, *images):
    return msgspec.structs.replace(triplet, images=list(images))


pieces = st.lists(
    st.one_of(st.integers(0, 3), st.tuples(st.sampled_from([RED, BLUE]), st.integers(1, 3))),
    max_size=8,
)


@given(pieces, pieces)
def test_prompts_share_as_much_as_was_shown_alike(one, other):
    numbers = ImageNumbers()
    ids = [numbered(numbers, each) for each in (one, other)]
    whole = [[piece for piece in each for _ in range(length(piece))] for each in (one, other)]
    assert alike(*ids) == alike(*whole)


def alike(one, other):
    """How many of the first items are the same."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def length(piece):
    return piece[1] if isinstance(piece, tuple) else 1


def numbered(numbers, pieces):
    ids, images = [], []
    for piece in pieces:
        if isinstance(piece, tuple):
            images.append(Image(url=piece[0], start=len(ids), length=piece[1]))
            ids += [MARK] * piece[1]
        else:
            ids.append(piece)
    return numbers.ids(pack_ints(ids), images).tolist()

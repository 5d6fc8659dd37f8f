"""The sampler against exact probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from agl_torch.serving.sampling import SamplingParams, draw, sample, uniforms

LOGITS = torch.tensor([[2.0, 0.0, -1.0, 1.0]])


def sampling(**fields):
    return SamplingParams(max_tokens=1, **fields)


def test_log_probability_after_temperature():
    logits = torch.tensor([[2.0, 0.0]])
    cold = sample(logits, [sampling(temperature=0.5)], [0.0])
    assert cold.tokens == [0]
    assert cold.logprobs[0] == pytest.approx(-0.0181, abs=1e-4)
    warm = sample(logits, [sampling()], [0.0])
    assert warm.logprobs[0] == pytest.approx(-0.1269, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_distribution_is_inverted_exactly(temperature):
    count = 4000
    rows = [sampling(temperature=temperature)] * count
    numbers = [(index + 0.5) / count for index in range(count)]
    tokens = sample(LOGITS.expand(count, -1), rows, numbers).tokens
    expected = torch.softmax(LOGITS[0] / temperature, -1).tolist()
    for token, probability in enumerate(expected):
        assert tokens.count(token) / count == pytest.approx(probability, abs=2 / count)
    assert tokens == sorted(tokens)


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    probabilities = torch.softmax(LOGITS[0], -1)
    two = float(probabilities[0] + probabilities[3])
    count = 500
    numbers = [(index + 0.5) / count for index in range(count)]
    for top_p, kept in [
        (0.1, {0}),
        (two - 1e-4, {0, 3}),
        (two + 1e-4, {0, 1, 3}),
        (1.0, {0, 1, 2, 3}),
    ]:
        rows = [sampling(top_p=top_p)] * count
        drawn = sample(LOGITS.expand(count, -1), rows, numbers)
        assert set(drawn.tokens) == kept
    assert drawn.logprobs[0] == pytest.approx(math.log(float(probabilities[drawn.tokens[0]])))


def test_tokens_without_probability_are_never_drawn():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]])
    edge = 1 - 2**-48
    tokens = [sample(logits, [sampling()], [number]).tokens[0] for number in (0.0, 0.5, edge)]
    assert tokens == [1, 3, 3]


def test_rows_do_not_touch_each_other():
    rows = [sampling(temperature=0), sampling(top_p=0.1), sampling(), sampling(top_logprobs=2)]
    got = sample(LOGITS.expand(4, -1), rows, [0.99] * 4)
    assert got.tokens == [0, 0, 3, 3]
    assert [len(top) for top in got.tops] == [0, 0, 0, 2]
    assert got.tops[3][0] == (0, pytest.approx(got.logprobs[0]))


def test_streams_follow_from_seed_and_choice():
    def numbers(seed, choice):
        stream = uniforms(seed, choice)
        return [draw(stream) for _ in range(5)]

    assert numbers(3, 0) == numbers(3, 0)
    assert numbers(3, 0) != numbers(3, 1)
    assert numbers(3, 0) != numbers(4, 0)
    assert numbers(None, 0) != numbers(None, 0)
    assert all(0 <= number < 1 for number in numbers(-5, 2))

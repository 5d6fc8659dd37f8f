"""Losses against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from agl_torch.losses import Terms
from agl_torch.losses.cross_entropy import CrossEntropy
from agl_torch.losses.divergence import k3
from agl_torch.losses.policy_gradient import ClipOptions, PolicyGradient


def terms(logprobs, behaviour, advantages, *, weights=None, sequences=None):
    count = len(logprobs)
    return Terms(
        logprobs=torch.tensor(logprobs, requires_grad=True),
        behaviour=torch.tensor(behaviour),
        advantages=torch.tensor(advantages),
        weights=torch.tensor(weights or [1.0] * count),
        sequences=torch.tensor(sequences or [0] * count),
    )


def loss(**options):
    return PolicyGradient(ClipOptions(**options))


def test_on_the_behaviour_policy_the_gradient_is_reinforce():
    given = terms([-1.0, -2.0], [-1.0, -2.0], [0.5, -1.5])
    output = loss()(given)
    output.losses.sum().backward()
    assert given.logprobs.grad.tolist() == pytest.approx([-0.5, 1.5])
    assert output.means["ratio_mean"].tolist() == [1.0, 1.0]
    assert output.means["clip_fraction"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "expected", "moves"),
    [
        (math.log(1.5), 1.0, -1.28, False),
        (math.log(1.5), -1.0, 1.5, True),
        (math.log(0.5), 1.0, -0.5, True),
        (math.log(0.5), -1.0, 0.8, False),
        (math.log(1.1), 1.0, -1.1, True),
    ],
)
def test_clipping(log_ratio, advantage, expected, moves):
    given = terms([log_ratio - 1.0], [-1.0], [advantage])
    output = loss(clip_low=0.2, clip_high=0.28)(given)
    output.losses.sum().backward()
    assert output.losses.item() == pytest.approx(expected, rel=1e-5)
    assert bool(given.logprobs.grad.item() != 0) is moves
    assert output.means["clip_fraction"].item() == float(not moves)


def test_sequence_ratios_are_geometric_means_over_trained_tokens():
    given = terms(
        [-1.0, -1.0, -3.0, -5.0],
        [-1.2, -1.0, -3.1, -1.0],
        [1.0, 1.0, 1.0, 1.0],
        weights=[1.0, 1.0, 1.0, 0.0],
        sequences=[0, 0, 1, 1],
    )
    ratio = loss(ratio="sequence", clip_high=1.0)(given).means["ratio_mean"]
    assert ratio.tolist() == pytest.approx([math.exp(0.1)] * 2 + [math.exp(0.1)] * 2, rel=1e-5)


def test_an_extreme_ratio_stays_finite():
    given = terms([-1.0, -200.0], [-200.0, -1.0], [-1.0, 1.0])
    output = loss()(given)
    output.losses.sum().backward()
    assert torch.isfinite(output.losses).all()
    assert torch.isfinite(given.logprobs.grad).all()


def test_cross_entropy_imitates_whatever_the_advantage():
    given = terms([-1.0, -2.0], [0.0, 0.0], [5.0, -5.0])
    output = CrossEntropy()(given)
    assert output.losses.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_k3_is_finite_and_pulls_back_at_any_distance(dtype):
    policy = torch.tensor([-100.0, -1.0, -2.0, -0.1], dtype=dtype, requires_grad=True)
    reference = torch.tensor([-0.1, -2.0, -2.0, -90.0], dtype=dtype)
    values = k3(policy, reference)
    values.sum().backward()
    assert torch.isfinite(values).all()
    assert torch.isfinite(policy.grad).all()
    assert (values >= 0).all()
    assert values[1].item() == pytest.approx(0.3679, rel=1e-2)
    assert values[2].item() == 0
    grad = policy.grad.tolist()
    assert grad[0] < 0  # descending raises a log-probability that is too low
    assert grad[1] > 0
    assert grad[2] == 0
    assert grad[3] > 0


def test_k3_goes_on_smoothly_where_it_turns_linear():
    distance = torch.tensor([9.999, 10.0, 10.001], dtype=torch.float64, requires_grad=True)
    values = k3(torch.zeros(3, dtype=torch.float64), distance)
    values.sum().backward()
    slopes = distance.grad
    assert values[1].item() == pytest.approx(math.exp(10) - 11)
    assert slopes[0].item() == pytest.approx(slopes[2].item(), rel=2e-3)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [1e-4, 2.4e-4, 9.8e-4, 1e-2, 0.3, 1.0, 4.0, 9.0])
def test_k3_has_its_exact_gradient(size, sign):
    """E1: d k3 / d logp = 1 - e^d to 1e-5 relative."""
    policy = torch.zeros(1, requires_grad=True)
    reference = torch.tensor([sign * size], dtype=torch.float32)
    k3(policy, reference).sum().backward()
    exact = -math.expm1(reference.item())
    assert policy.grad.item() == pytest.approx(exact, rel=1e-5)

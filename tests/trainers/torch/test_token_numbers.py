"""Numbers of each loss term: entropy, log-probability before and after, against transformers alone."""

from __future__ import annotations

import math

import pytest
import torch
from agl_torch import _forward
from agl_torch.losses.policy_gradient import ClipOptions, PolicyGradient
from transformers import AutoModelForCausalLM

from agl_core.interfaces import AlgorithmSetup
from agl_core.types import Policy


def setup(**fields):
    given = {"name": "grpo", "lr": 1e-2, "token_numbers": True, **fields}
    return AlgorithmSetup(loss_factory=lambda: PolicyGradient(ClipOptions()), **given)


@pytest.fixture
def policy(model_path):
    return Policy(name="p", model=model_path, trainable=True)


@pytest.fixture
def samples(sampled):
    """Two groups of two calls; that of group 1 have the greater advantages."""
    return [
        sampled([1, 2, 3], [7, 8, 9], [-5.0] * 3, advantage=0.1, group=0),
        sampled([1, 2, 3], [7, 11], [-5.0] * 2, advantage=-0.1, group=0),
        sampled([1, 2, 4], [70, 71, 72, 73], [-5.0] * 4, advantage=1.0, group=1, temperature=0.5),
        sampled([1, 5], [80], [-5.0], advantage=-1.0, group=1),
    ]


def expected(model, samples, batch):
    """Log-probability and entropy of each term, by sequence and place."""
    module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    logprobs, entropies = [], []
    for node, target, call in zip(batch.nodes, batch.targets, batch.calls, strict=True):
        sample = samples[call]
        ids = [*sample.prompt, *sample.tokens]
        place = batch.positions[node]
        assert ids[place + 1] == target
        with torch.no_grad():
            logits = module(input_ids=torch.tensor([ids])).logits[0, place]
        scaled = torch.log_softmax(logits.double() / (sample.temperature or 1.0), -1)
        logprobs.append(float(scaled[target]))
        entropies.append(float(-(scaled.exp() * scaled).sum()))
    return logprobs, entropies


@pytest.mark.parametrize("pieces", [False, True])
async def test_they_equal_a_direct_computation(
    run_engine, policy, samples, make_batch, tmp_path, monkeypatch, pieces
):
    if pieces:  # two terms at a time, which the backward pass computes again
        monkeypatch.setattr(_forward, "CHUNK_LOGITS", 2 * 300)
    batch = make_batch(samples)
    async with run_engine([policy], setup(), ratio_share=1.0) as engine:
        update = await engine.update(batch)
        await engine.save("p", str(tmp_path), resumable=False)
    before, entropies = expected(policy.model, samples, batch)
    after, _ = expected(str(tmp_path), samples, batch)
    assert update.tokens.before.tolist() == pytest.approx(before, abs=1e-4)
    assert update.tokens.entropies.tolist() == pytest.approx(entropies, abs=1e-4)
    assert update.tokens.after.tolist() == pytest.approx(after, abs=1e-4)
    assert max(abs(a - b) for a, b in zip(before, after, strict=True)) > 0.01


async def test_the_share_is_of_the_groups_with_the_greatest_advantages(
    run_engine, policy, samples, make_batch
):
    batch = make_batch(samples)
    for share, groups in ((0.0, set()), (0.1, {1}), (0.5, {1}), (1.0, {0, 1})):
        async with run_engine([policy], setup(), ratio_share=share) as engine:
            update = await engine.update(batch)
        known = [not math.isnan(value) for value in update.tokens.after]
        assert known == [batch.groups[call] in groups for call in batch.calls]
        assert not any(map(math.isnan, update.tokens.before))


async def test_with_minibatches_only_unchanged_weights_count_as_before(
    run_engine, policy, samples, make_batch
):
    batch = make_batch(samples)
    before, entropies = expected(policy.model, samples, batch)
    async with run_engine([policy], setup(minibatches=2, epochs=2), ratio_share=0.1) as engine:
        update = await engine.update(batch)
    for at, call in enumerate(batch.calls):
        value = update.tokens.before[at]
        if not math.isnan(value):
            assert value == pytest.approx(before[at], abs=1e-4)
            assert update.tokens.entropies[at] == pytest.approx(entropies[at], abs=1e-4)
        if batch.groups[call] == 1:
            assert not math.isnan(value)
            assert not math.isnan(update.tokens.after[at])


async def test_without_being_asked_there_are_none(run_engine, policy, samples, make_batch):
    async with run_engine([policy], setup(token_numbers=False)) as engine:
        assert (await engine.update(make_batch(samples))).tokens is None


async def test_they_change_no_weight(run_engine, policy, samples, make_batch):
    marks = []
    for asked in (False, True):
        async with run_engine([policy], setup(token_numbers=asked, minibatches=2)) as engine:
            for step in range(2):
                await engine.update(make_batch(samples, step=step))
            marks.append(await engine.fingerprint("p"))
    assert marks[0] == marks[1]

"""Packs compute exactly what one row per sequence computes."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from agl_torch._forward import CausalModel
from agl_torch.training.batch import TensorBatch
from agl_torch.training.packing import Costs, Packer
from agl_torch.training.scoring import LogprobScorer
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

CPU = torch.device("cpu")
CHEAP_PAIRS = Costs(token=1.0, pair=0.0)
CHEAP_TOKENS = Costs(token=1e-9, pair=1.0)


def random_samples(sampled, seed, count=10):
    """Groups with a common beginning, several answers per prompt, and calls that go on."""
    rng = random.Random(seed)
    beginning = [rng.randrange(256) for _ in range(rng.randrange(1, 12))]
    prompts = [
        beginning[: rng.randrange(len(beginning) + 1)]
        + [rng.randrange(256) for _ in range(rng.randrange(1, 15))]
        for _ in range(4)
    ]
    samples = []
    for _ in range(count):
        group = rng.randrange(len(prompts))
        prompt = prompts[group]
        if samples and rng.random() < 0.4:
            previous = rng.choice(samples)
            group = previous.group
            prompt = [*previous.prompt, *previous.tokens, *prompt[:5]]
        tokens = [rng.randrange(256) for _ in range(rng.randrange(1, 9))]
        samples.append(
            sampled(
                prompt,
                tokens,
                [0.0] * len(tokens),
                advantage=rng.uniform(-1, 1),
                weight=rng.choice([0.0, 1.0, 1.0, 0.3]),
                temperature=rng.choice([1.0, 0.6, 1.4]),
                group=group,
            )
        )
    return samples


def packs_of(batch, *, costs, pack_tokens, terms=None):
    arrays = TensorBatch.of(batch, device=CPU)
    packer = Packer(costs, pack_tokens=pack_tokens)
    chosen = np.arange(len(batch.nodes)) if terms is None else terms
    groups = packer.packs(packer.rows(arrays.forest, chosen))
    return arrays, [arrays.layout.pack(rows, device=CPU) for rows in groups]


@given(
    st.integers(0, 10_000),
    st.sampled_from([CHEAP_PAIRS, CHEAP_TOKENS]),
    st.sampled_from([1, 40, 100, 10_000]),
)
def test_every_term_sits_once_on_its_own_path(sampled, make_batch, seed, costs, pack_tokens):
    samples = random_samples(sampled, seed)
    batch = make_batch(samples)
    _, packs = packs_of(batch, costs=costs, pack_tokens=pack_tokens)
    seen = []
    for pack in packs:
        count, width = pack.rows.tokens.shape
        places = torch.arange(width)
        causal = (places <= places[:, None]).expand(count, -1, -1)
        mask = causal if pack.rows.mask is None else pack.rows.mask[:, 0]
        calls_here = {}
        for place, term in zip(pack.select.tolist(), pack.terms.tolist(), strict=True):
            row, column = divmod(place, width)
            visible = mask[row, column].nonzero()[:, 0]
            sample = samples[batch.calls[term]]
            start = term - batch.calls.index(batch.calls[term])
            path = [*sample.prompt, *sample.tokens[:start]]
            assert pack.rows.tokens[row, visible].tolist() == path
            assert pack.rows.positions[row, visible].tolist() == list(range(len(path)))
            calls_here.setdefault(batch.calls[term], set()).add(row)
            seen.append(term)
        assert all(len(rows) == 1 for rows in calls_here.values())
        longest = max(len(s.prompt) + len(s.tokens) - 1 for s in samples)
        assert count * width <= max(pack_tokens, longest)
        assert mask.any(-1).all()
    assert sorted(seen) == list(range(len(batch.nodes)))


@pytest.mark.parametrize("costs", [CHEAP_PAIRS, CHEAP_TOKENS])
@pytest.mark.parametrize("pack_tokens", [1, 60, 10_000])
def test_logprobs_and_gradients_equal_those_of_rows(
    model_path, sampled, make_batch, costs, pack_tokens
):
    samples = random_samples(sampled, seed=7, count=14)
    batch = make_batch(samples)
    module = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    coefficients = torch.randn(len(batch.nodes), generator=torch.Generator().manual_seed(0))

    expected = []
    for sample in samples:
        ids = torch.tensor([[*sample.prompt, *sample.tokens]])
        logits = module(input_ids=ids).logits[0, len(sample.prompt) - 1 : -1]
        scaled = torch.log_softmax(logits / sample.temperature, -1)
        expected.append(scaled[torch.arange(len(sample.tokens)), torch.tensor(sample.tokens)])
    by_rows = torch.cat(expected)
    (by_rows * coefficients).sum().backward()
    gradients = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()

    scorer = LogprobScorer(CausalModel(module), autocast=None)
    arrays, packs = packs_of(batch, costs=costs, pack_tokens=pack_tokens)
    found = torch.zeros(len(batch.nodes))
    for pack in packs:
        logprobs = scorer.logprobs(pack, arrays)
        (logprobs * coefficients[pack.terms]).sum().backward()
        found[pack.terms] = logprobs.detach()
    assert torch.allclose(found, by_rows.detach(), atol=1e-5)
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        scale = float(gradient.abs().max()) + 1e-6
        assert torch.allclose(parameter.grad, gradient, atol=1e-5 * max(scale, 1.0))


def test_shared_tokens_are_read_once(sampled, make_batch):
    samples = [sampled(range(50), [index, index], [0.0, 0.0]) for index in range(8)]
    batch = make_batch(samples)
    arrays, packs = packs_of(batch, costs=CHEAP_PAIRS, pack_tokens=1000)
    assert [tuple(pack.rows.tokens.shape) for pack in packs] == [(1, 58)]
    del arrays


def test_dear_attention_splits_groups_into_rows_of_their_own(sampled, make_batch):
    samples = [
        sampled([1, *[group] * 40], [index, index], [0.0, 0.0], group=group)
        for group in range(2, 6)
        for index in range(8)
    ]
    _, packs = packs_of(make_batch(samples), costs=Costs(token=100.0, pair=10.0), pack_tokens=1000)
    assert [tuple(pack.rows.tokens.shape) for pack in packs] == [(4, 49)]


def test_a_minibatch_reads_only_what_it_needs(sampled, make_batch):
    samples = [sampled([1] * 10 + [g] * 20, [5, 5], [0.0, 0.0], group=g) for g in range(2, 5)]
    batch = make_batch(samples)
    terms = np.flatnonzero(np.asarray(batch.calls) == 1)
    _, packs = packs_of(batch, costs=CHEAP_PAIRS, pack_tokens=1000, terms=terms)
    assert [tuple(pack.rows.tokens.shape) for pack in packs] == [(1, 31)]
    assert sorted(packs[0].terms.tolist()) == terms.tolist()


def test_minibatches_keep_groups_whole_and_follow_from_their_seed(sampled, make_batch):
    samples = [sampled([g], [1, 2], [0.0, 0.0], group=g) for g in range(5) for _ in range(3)]
    arrays = TensorBatch.of(make_batch(samples), device=CPU)
    parts = arrays.minibatches(2, order="0/1/0")
    groups = [set(arrays.groups[part].tolist()) for part in parts]
    assert sorted(map(len, groups)) == [2, 3]
    assert not groups[0] & groups[1]
    again = arrays.minibatches(2, order="0/1/0")
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))
    permutations = {tuple(arrays.minibatches(2, order=f"0/{i}/0")[0].tolist()) for i in range(9)}
    assert len(permutations) > 1
    assert len(arrays.minibatches(99, order="x")) == 5

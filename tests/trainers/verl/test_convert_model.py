"""On one model verl's forward and loss give the log-probabilities and gradients of agl_torch."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from agl_torch._forward import CausalModel
from agl_torch.losses import Terms
from agl_torch.losses.policy_gradient import ClipOptions, PolicyGradient
from agl_torch.training.batch import TensorBatch
from agl_torch.training.packing import Costs, Packer
from agl_torch.training.scoring import LogprobScorer
from agl_verl._loss import PolicyLoss, PolicyLossOptions
from agl_verl.convert import rows_of, tensors_of
from transformers import Qwen2Config, Qwen2ForCausalLM

from agl_core.training.algorithms import GRPO, RLOO, GRPOOptions, RLOOOptions
from tests.trainers.verl.convert_cases import case_of, conversations
from tests.trainers.verl.verl_parts import (
    FSDPEngineWithLMHead,
    actor_config,
    ppo_loss,
    response_from_nested,
    split,
)
from tests.trainers.verl.verl_parts import tensordict_utils as tu


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=12,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=False,
        initializer_range=0.5,
    )
    return Qwen2ForCausalLM(config).float().eval()


def batch_of(algorithm):
    """Some calls at another temperature; behaviour near the model, so that some ratios clip."""
    batch = case_of(conversations(), algorithm).batch
    for term, call in enumerate(batch.calls):
        batch.temperatures[term] = 0.7 if call % 3 == 0 else 1.0
    return batch


def scored(model, batch):
    """(terms, log-probabilities) as agl_torch computes them, with gradient."""
    arrays = TensorBatch.of(batch, device=torch.device("cpu"))
    packer = Packer(Costs(token=1.0, pair=0.0), pack_tokens=60)
    scorer = LogprobScorer(CausalModel(model), autocast=None)
    packs = packer.packs(packer.rows(arrays.forest, np.arange(len(batch.nodes))))
    found = []
    for rows in packs:
        pack = arrays.layout.pack(rows, device=torch.device("cpu"))
        found.append((pack.terms, scorer.logprobs(pack, arrays)))
    terms, logprobs = (torch.cat(parts) for parts in zip(*found, strict=True))
    return logprobs[torch.argsort(terms)]


def stepped_by_torch(model, batch, options):
    logprobs = scored(model, batch)
    terms = Terms(
        logprobs=logprobs,
        behaviour=torch.tensor(batch.logprobs),
        advantages=torch.tensor(batch.advantages),
        weights=torch.tensor(batch.weights),
        sequences=torch.tensor(batch.calls).long(),
    )
    loss = (PolicyGradient(options)(terms).losses * terms.weights).sum() / terms.weights.sum()
    loss.backward()
    return logprobs.detach(), loss.item()


def verl_forward(model, micro):
    """verl's own preparation of inputs and outputs; nothing of it needs a process group."""
    engine = SimpleNamespace(pad_to_length=False, engine_config=SimpleNamespace())
    tu.assign_non_tensor(micro, use_remove_padding=False)
    inputs, arguments = FSDPEngineWithLMHead.prepare_model_inputs(engine, micro)
    output = model(**inputs, use_cache=False)
    return FSDPEngineWithLMHead.prepare_model_outputs(engine, output, arguments, micro, None)


def stepped_by_verl(model, batch, rows, loss, *, ranks):
    tensors = tensors_of(rows, multiple=ranks, pad_id=0, agg_mode=loss.agg_mode, ranks=ranks)
    config, tokens = actor_config(loss.actor), int(tensors["loss_mask"].sum())
    found, total = {}, 0.0
    for _, micro_batches in split(tensors, ranks):
        for micro in micro_batches:
            tu.assign_non_tensor(micro, batch_num_tokens=tokens, dp_size=ranks)
            output = verl_forward(model, micro)
            value, _ = ppo_loss(config, output, micro)
            (value / ranks).backward()
            total += value.item() / ranks
            answers = response_from_nested(output["log_probs"].detach(), micro["response_mask"])
            keys = zip(micro["input_ids"].unbind(), micro["advantages"].unbind(), strict=True)
            for (ids, advantages), answer in zip(keys, answers.unbind(), strict=True):
                found[tuple(ids.tolist()), tuple(advantages.tolist())] = answer
    logprobs = torch.zeros(len(batch.nodes))
    calls = np.asarray(batch.calls)
    for row in rows:
        key = (*row.prompt.tolist(), *row.response.tolist()), tuple(row.advantages.tolist())
        terms = np.concatenate([np.flatnonzero(calls == call) for call in row.calls])
        logprobs[terms] = found[key][torch.from_numpy(row.mask)]
    return logprobs, total


def gradients(model):
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return found


ALGORITHMS = [GRPO(GRPOOptions(weighting="attempt")), RLOO(RLOOOptions())]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("level", "ratio"), [("merged", "token"), ("transition", "token"), ("transition", "sequence")]
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_one_step_on_both_engines(model, algorithm, level, ratio, ranks):
    batch = batch_of(algorithm)
    with torch.no_grad():
        near = scored(model, batch)
    noise = torch.randn(len(near), generator=torch.Generator().manual_seed(1))
    batch.logprobs[:] = type(batch.logprobs)("f", (near + 0.3 * noise).tolist())
    options = ClipOptions(ratio=ratio, clip_low=0.2, clip_high=0.28)
    loss = PolicyLoss(PolicyLossOptions(**options.model_dump()))
    rows = rows_of(batch, level=level, max_tokens=None, overlong="error").rows

    ours, expected = stepped_by_torch(model, batch, options)
    by_torch = gradients(model)
    theirs, found = stepped_by_verl(model, batch, rows, loss, ranks=ranks)
    by_verl = gradients(model)

    assert torch.allclose(theirs, ours, atol=2e-5)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    norms = [float(torch.cat([part.reshape(-1) for part in each]).norm()) for each in (by_torch, by_verl)]  # fmt: skip
    assert norms[0] > 1e-3
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    for one, other in zip(by_torch, by_verl, strict=True):
        assert torch.allclose(one, other, atol=1e-4 * norms[0])

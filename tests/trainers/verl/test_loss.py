"""Which of verl's policy losses take a weight per token, and what is set of its actor for them."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
import torch
from agl_imitation._rft import RFT, RFTOptions
from agl_verl._loss import CrossEntropy, PolicyLoss, PolicyLossName, PolicyLossOptions
from pydantic import TypeAdapter, ValidationError

from agl_core.config.validation import validate
from agl_core.errors import ConfigError
from agl_core.training.algorithms import (
    GRPO,
    RLOO,
    GRPOOptions,
    Reinforce,
    ReinforceOptions,
    RLOOOptions,
)
from tests.trainers.verl.convert_cases import case_of, conversations
from tests.trainers.verl.verl_parts import (
    POLICY_LOSS_REGISTRY,
    FSDPActorConfig,
    PolicyLossConfig,
    actor_config,
    get_policy_loss_fn,
)

USABLE = {
    "vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "dro", "cispo",
}  # fmt: skip
NEEDED = {"dro": {"dro_beta": 0.5}, "clip_cov": {"clip_cov_lb": -1.0, "clip_cov_ratio": 0.3}}


def made(**options):
    return PolicyLoss(validate(PolicyLossOptions, options, where="loss"))


def computed(name, actor, weights):
    """verl's loss of one micro-batch of two rows with a gap and an end that are not trained."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0]])
    old = -torch.rand(mask.shape, generator=generator)
    torch.manual_seed(5)
    value, _ = get_policy_loss_fn(name)(
        old_log_prob=old,
        log_prob=old + 0.4 * torch.randn(mask.shape, generator=generator),
        advantages=torch.randn(mask.shape, generator=generator),
        response_mask=mask,
        loss_agg_mode=actor.get("loss_agg_mode", "token-mean"),
        config=actor_config(actor),
        rollout_is_weights=weights,
    )
    return value.item()


def parts(name, actor):
    """(the loss with random weights, the sum of what each weight makes of it alone)."""
    weights = torch.rand((2, 5), generator=torch.Generator().manual_seed(2))
    alone = 0.0
    for at in range(10):
        one = torch.zeros(10)
        one[at] = weights.reshape(-1)[at]
        alone += computed(name, actor, one.reshape(2, 5))
    return computed(name, actor, weights), alone


@pytest.mark.parametrize("name", sorted(USABLE))
def test_a_usable_loss_is_linear_in_the_weights(name):
    loss = made(policy_loss=name, **NEEDED.get(name, {}))
    whole, alone = parts(name, loss.actor)
    assert whole == pytest.approx(alone, rel=1e-5)
    assert whole != pytest.approx(0.0, abs=1e-6)


def test_geo_mean_is_not_linear_in_the_weights():
    whole, alone = parts("geo_mean", {"policy_loss": {"loss_mode": "geo_mean"}})
    assert whole != pytest.approx(alone, rel=0.01)


def test_bypass_mode_reads_no_weights():
    actor = {"policy_loss": {"loss_mode": "bypass_mode"}}
    assert computed("bypass_mode", actor, torch.ones(2, 5)) == computed(
        "bypass_mode", actor, torch.zeros(2, 5)
    )


def test_every_loss_of_verl_is_usable_or_refused_with_a_reason():
    usable = TypeAdapter(PolicyLossName)
    for name in POLICY_LOSS_REGISTRY:
        if name in USABLE:
            assert usable.validate_python(name) == name
            continue
        with pytest.raises(ValidationError, match=f"{name}' takes .*can be used: van") as raised:
            usable.validate_python(name)
        assert "is not one of verl's" not in str(raised.value)
    assert set(POLICY_LOSS_REGISTRY) == {*USABLE, "geo_mean", "bypass_mode"}


@pytest.mark.parametrize(
    "algorithm",
    [
        GRPO(GRPOOptions(clip_high=0.28)),
        RLOO(RLOOOptions(clip_high=0.28)),
        Reinforce(ReinforceOptions(clip_high=0.28)),
    ],
)
def test_core_algorithms_get_the_loss_they_mean(algorithm):
    loss = made(**algorithm.loss_options)
    assert loss.actor == {
        "loss_agg_mode": "token-mean",
        "clip_ratio": 0.2,
        "clip_ratio_low": 0.2,
        "clip_ratio_high": 0.28,
        "clip_ratio_c": 1e9,
        "policy_loss": {"loss_mode": "vanilla"},
    }
    assert not loss.row_per_choice


def test_ratios_of_sequences_are_gspo_on_a_row_per_choice():
    loss = made(**GRPO(GRPOOptions(ratio="sequence")).loss_options)
    assert loss.actor["policy_loss"] == {"loss_mode": "gspo"}
    assert loss.row_per_choice


def test_by_verls_name_the_defaults_are_verls():
    config = actor_config(made(policy_loss="vanilla").actor)
    default = FSDPActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True)
    assert config == default
    sapo = actor_config(made(policy_loss="sapo").actor)
    assert (sapo.tau_pos, sapo.tau_neg) == (default.tau_pos, default.tau_neg)
    for name in ("clip_cov", "kl_cov"):
        inner = actor_config(made(policy_loss=name).actor).policy_loss
        assert inner == PolicyLossConfig(loss_mode=name)


def test_sapo_averages_by_rows_whatever_verl_is_told():
    assert made(policy_loss="sapo").agg_mode == "seq-mean-token-mean"
    assert made(policy_loss="cispo", loss_agg_mode="seq-mean-token-sum").agg_mode == (
        "seq-mean-token-sum"
    )


def test_two_names_of_a_loss_are_one_too_many():
    with pytest.raises(ConfigError, match="policy_loss names a loss, and so does ratio"):
        made(policy_loss="gspo", ratio="sequence")


def test_cross_entropy_is_the_weighted_mean_of_minus_log_p():
    """verl's loss on the factors that rows get equals the sum written out here."""
    loss = CrossEntropy()
    mask = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0]])
    weights = torch.rand(mask.shape, generator=torch.Generator().manual_seed(3)) * mask
    logprobs = -torch.rand(mask.shape, generator=torch.Generator().manual_seed(4))
    factor = mask.sum() / weights.sum()  # of `tensors_of`, for token-mean

    value, _ = get_policy_loss_fn(loss.actor["policy_loss"]["loss_mode"])(
        old_log_prob=torch.full(mask.shape, -9.0),
        log_prob=logprobs,
        advantages=torch.ones(mask.shape),
        response_mask=mask,
        loss_agg_mode=loss.agg_mode,
        config=actor_config(loss.actor),
        rollout_is_weights=weights * factor,
    )

    assert value.item() == pytest.approx(
        float((-logprobs * weights).sum() / weights.sum()), rel=1e-6
    )


def test_cross_entropy_trains_every_term_alike_whatever_its_advantage():
    credits_ = RFT(RFTOptions())
    batch = case_of(conversations(), credits_).batch
    batch = replace(batch, advantages=array("f", [-3.0]) * len(batch.targets))
    prepared = CrossEntropy().prepared(batch)
    assert set(prepared.advantages) == {1.0}
    assert replace(prepared, advantages=batch.advantages) == batch

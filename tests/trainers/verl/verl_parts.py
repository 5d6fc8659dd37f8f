"""What the tests use of verl itself; importing it warns of back ends that are not installed."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from agl_verl import _compat
    from verl.models.transformers.monkey_patch import apply_monkey_patch
    from verl.protocol import BatchData
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import (
        ADV_ESTIMATOR_REGISTRY,
        POLICY_LOSS_REGISTRY,
        agg_loss,
        get_policy_loss_fn,
    )
    from verl.utils import tensordict_utils
    from verl.workers.config import FSDPActorConfig, PolicyLossConfig
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
    from verl.workers.engine.utils import prepare_micro_batches
    from verl.workers.utils.losses import ppo_loss
    from verl.workers.utils.padding import no_padding_2_padding, response_from_nested


default_config = _compat.default_config

__all__ = [
    "ADV_ESTIMATOR_REGISTRY",
    "POLICY_LOSS_REGISTRY",
    "AlgoConfig",
    "BatchData",
    "FSDPActorConfig",
    "FSDPEngineWithLMHead",
    "PolicyLossConfig",
    "actor_config",
    "agg_loss",
    "apply_monkey_patch",
    "default_config",
    "get_policy_loss_fn",
    "no_padding_2_padding",
    "ppo_loss",
    "prepare_micro_batches",
    "response_from_nested",
    "split",
    "tensordict_utils",
]


def actor_config(actor):
    """verl's configuration of an actor with the keys that a `PolicyLoss` sets."""
    given = dict(actor)
    policy_loss = PolicyLossConfig(**given.pop("policy_loss"))
    return FSDPActorConfig(
        strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, policy_loss=policy_loss, **given
    )


def split(tensors, ranks):
    """As verl's dispatch, its mini-batch iterator and its micro-batches split them."""
    for part in BatchData(tensors).chunk(ranks):
        (mini,) = tensordict_utils.make_iterator(
            part,
            mini_batch_size=tensordict_utils.get(tensors, "mini_batch_size") // ranks,
            epochs=tensordict_utils.get(tensors, "epochs"),
            seed=tensordict_utils.get(tensors, "seed"),
            dataloader_kwargs=tensordict_utils.get(tensors, "dataloader_kwargs"),
        )
        tensordict_utils.assign_non_tensor(mini, use_dynamic_bsz=True, max_token_len_per_gpu=40)
        yield mini, prepare_micro_batches(mini)[0]

"""verl's configuration: its defaults, the run's settings, and the user's table ``[verl]``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final, cast

from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup
from agl_verl import _compat
from agl_verl._config_checks import ROOT, check_given, check_merged
from agl_verl.cpu import ROLLOUT, TRANSFER
from agl_verl.memory import MOST_OF_A_GPU, Use, default_share

_STRATEGY: Final = "${actor_rollout_ref.actor.strategy}"
_CPU_FSDP: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "strategy": _STRATEGY,
        "dtype": "float32",
        "use_torch_compile": False,
        "mixed_precision": {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    }
)
_CPU: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "actor": {
            "strategy": "fsdp2",
            "use_torch_compile": False,
            "ppo_max_token_len_per_gpu": 4096,
            "fsdp_config": _CPU_FSDP,
        },
        # verl puts forward-only weights into pinned memory, which a CPU does not have. Other
        # weights need an optimizer; it never takes a step.
        "ref": {
            "fsdp_config": {**_CPU_FSDP, "forward_only": False},
            "optim": "${actor_rollout_ref.actor.optim}",
        },
        "model": {
            "use_remove_padding": False,
            "enable_gradient_checkpointing": False,
            "override_config": {"attn_implementation": "sdpa"},
        },
        "rollout": {"name": ROLLOUT, "free_cache_engine": False, "dtype": "float32"},
    }
)
_GPU: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "actor": {"strategy": "fsdp2", "fsdp_config": {"strategy": _STRATEGY}},
        "ref": {"fsdp_config": {"strategy": _STRATEGY}},
        "rollout": {"name": "vllm"},
    }
)
_WITHOUT_FLASH: Final[Mapping[str, Any]] = MappingProxyType(
    {"use_remove_padding": False, "override_config": {"attn_implementation": "sdpa"}}
)
"""Model options on a GPU without flash-attn, which verl needs by default. Rows are then padded, as
on a CPU, since only flash-attn supports several rows in one sequence."""
_TRANSFERS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "cpu": {"backend": TRANSFER, "custom_backend_module": "agl_verl.cpu.weights"},
        "cuda": {"backend": "nccl"},
    }
)
"""Checkpoint engine for replicas with their own devices, by device type."""


@dataclass(frozen=True, slots=True)
class Served:
    """Properties of the models that are known before the start."""

    context: int | None = None
    """Context length of the trained policy's model; None if unknown."""
    row_tokens: int | None = None
    """The engine's option `max_row_tokens`."""
    frozen: int = 0
    """Number of frozen models."""
    here: bool = True
    """Whether the run will start in this environment, which then needs the server's packages."""


def make_config(
    given: Mapping[str, Any],
    *,
    device: str,
    model: str,
    setup: AlgorithmSetup | None,
    actor: Mapping[str, Any],
    served: Served = Served(),
) -> Any:
    """Return the configuration for verl's workers.

    Args:
        given: The user's table ``[verl]``.
        device: ``cpu`` or ``cuda``.
        model: Path or hub name of the trained policy's weights.
        setup: How to train; None serves only.
        actor: Keys of ``actor_rollout_ref.actor`` that the loss sets.
        served: Properties of the models.

    Raises:
        ConfigError: a key is unknown or belongs to another section, verl rejects a value, or the
            replicas of one GPU need more than its memory.
    """
    from omegaconf import OmegaConf  # noqa: PLC0415

    config = _compat.default_config()
    OmegaConf.set_struct(config, False)
    config[ROOT].rollout.engine_kwargs[ROLLOUT] = {}
    check_given(given, config)
    ours = {
        ROOT: {
            "model": {"path": model, "lora": {"merge": True}},
            "actor": {"use_dynamic_bsz": True, "checkpoint": {"save_contents": _CONTENTS}, **actor},
            "rollout": {"load_format": "auto", "tensor_model_parallel_size": 1},
        },
        "trainer": {"device": device, "n_gpus_per_node": 1},
    }
    layers = [{ROOT: _machine(device)}, ours, _setup(setup), dict(given)]
    merged: Any = OmegaConf.merge(config, *layers)
    if device != "cpu":
        layers.insert(1, {ROOT: {"rollout": _rollout(given, merged, served)}})
        merged = OmegaConf.merge(config, *layers)
    if has_adapter(merged[ROOT].model):
        adapter = {"save_contents": _CONTENTS[:-1], "save_lora_only": True}
        layers.append({ROOT: {"actor": {"checkpoint": adapter}}})
        merged = OmegaConf.merge(config, *layers)
    if has_own_devices(merged):
        transfer = {ROOT: {"rollout": {"checkpoint_engine": _plain(_TRANSFERS[device])}}}
        merged = OmegaConf.merge(config, layers[0], transfer, *layers[1:])
    check_merged(merged, device=device, here=served.here)
    return merged


def _machine(device: str) -> dict[str, Any]:
    if device == "cpu":
        return _plain(_CPU)
    flash = find_spec("flash_attn") is not None
    return _plain(_GPU if flash else {**_GPU, "model": _WITHOUT_FLASH})


def _rollout(given: Mapping[str, Any], merged: Any, served: Served) -> dict[str, Any]:
    """Return the replicas' sequence length and share of GPU memory.

    verl passes ``response_length`` to vLLM as the limit of every answer, so it is set to the length
    of a whole sequence. A sequence may be one token longer than a row. A call that is truncated at
    this limit is therefore too long for a row, and `agl_verl.convert._rows` reports it instead of
    training it as if the model had ended it.

    Raises:
        ConfigError: the sequence length exceeds the model's context, or the replicas' shares
            exceed a GPU.
    """
    rollout = merged[ROOT].rollout
    longest = rollout.max_model_len
    if longest is None:
        longest = row_limit(merged, served.row_tokens) + 1
        longest = min(longest, served.context or longest)
    elif served.context is not None and longest > served.context:
        raise ConfigError(
            f"Configuration: verl.{ROOT}.rollout.max_model_len = {longest}, but the model's context "
            f"holds {served.context} tokens: set at most that"
        )
    found: dict[str, Any] = {"max_model_len": longest, "response_length": longest}
    replicas = frozen_on_one(merged, served.frozen) + (not has_own_devices(merged))
    share, key = rollout.gpu_memory_utilization, f"verl.{ROOT}.rollout.gpu_memory_utilization"
    if "gpu_memory_utilization" not in given.get(ROOT, {}).get("rollout", {}):
        found["gpu_memory_utilization"] = default_share(replicas)
    elif replicas > 1 and replicas * share > MOST_OF_A_GPU:
        raise ConfigError(
            f"Configuration: {key} = {share:g} is the share of each replica, and one GPU holds "
            f"{replicas} of them ({'' if has_own_devices(merged) else 'the trained policy and '}"
            f"{served.frozen} frozen models): {replicas} x {share:g} = {replicas * share:g}, more "
            f"than {MOST_OF_A_GPU}. Set at most {default_share(replicas):g}, or leave it out"
        )
    return found


def row_limit(config: Any, row_tokens: int | None) -> int:
    """Return the maximum length of a trained row in tokens."""
    micro = int(config[ROOT].actor.ppo_max_token_len_per_gpu)
    return min(micro, row_tokens or micro)


def frozen_on_one(config: Any, frozen: int) -> int:
    """Return the number of frozen replicas on the fullest device; each model has one replica."""
    trainer = config.trainer
    devices = int(trainer.n_gpus_per_node) * int(trainer.nnodes)
    return math.ceil(frozen / max(1, devices // max(1, replica_size(config[ROOT].rollout))))


def use_of(config: Any, served: Served) -> Use:
    """Return how a configuration uses its GPUs, for the estimate of `agl_verl.memory`."""
    root, trainer = config[ROOT], config.trainer
    rank = int(root.model.get("lora", {}).get("rank", 0) or root.model.lora_rank or 0)
    return Use(
        gpus=int(trainer.n_gpus_per_node) * int(trainer.nnodes),
        micro_batch=int(root.actor.ppo_max_token_len_per_gpu),
        rank=rank,
        share=float(root.rollout.gpu_memory_utilization),
        replica=replica_size(root.rollout),
        frozen=frozen_on_one(config, served.frozen),
        apart=has_own_devices(config),
        offloaded=bool(root.actor.fsdp_config.offload_policy),
    )


_CONTENTS: Final = ["model", "optimizer", "extra", "hf_model"]


def _setup(setup: AlgorithmSetup | None) -> dict[str, Any]:
    if setup is None:
        return {}
    optimizer = {
        "lr": setup.lr,
        "weight_decay": setup.weight_decay,
        "clip_grad": setup.max_grad_norm,
    }
    divergence = {"use_kl_loss": setup.kl_weight > 0, "kl_loss_coef": setup.kl_weight}
    seeded = {"fsdp_config": {"seed": setup.seed}, "grad_clip": setup.max_grad_norm}
    return {ROOT: {"actor": {"optim": optimizer, **divergence, **seeded}}}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in cast("Mapping[str, Any]", value).items()}
    return value


def has_own_devices(config: Any) -> bool:
    """Return whether the trained policy's replicas have their own devices."""
    return bool(config[ROOT].rollout.nnodes)


def context_of(model: str, *, trust_remote_code: bool = False) -> int | None:
    """Return a model's context length; None if its configuration is unreadable or lacks it."""
    from transformers import AutoConfig  # noqa: PLC0415

    try:
        config: Any = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    except (OSError, ValueError):
        return None
    text = getattr(config, "text_config", None) or config
    return getattr(text, "max_position_embeddings", None)


def replica_size(rollout: Any) -> int:
    """Return the number of devices of one replica."""
    return (
        int(rollout.tensor_model_parallel_size)
        * int(rollout.data_parallel_size)
        * int(rollout.pipeline_model_parallel_size)
    )


def has_adapter(model: Any) -> bool:
    """Return whether verl trains a low-rank adapter; verl has two options for it."""
    return int(model.get("lora", {}).get("rank", 0) or 0) > 0 or int(model.lora_rank or 0) > 0


def has_linear_adapter(model: Any) -> bool:
    """Return whether verl creates the adapter on linear layers, so `agl_torch` can merge it."""
    return has_adapter(model) and not (model.lora_adapter_path or model.get("target_parameters"))

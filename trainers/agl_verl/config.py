"""verl's configuration: its defaults, what a run says, and what the user adds under ``[verl]``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, cast

from agl_core.interfaces import AlgorithmSetup
from agl_verl import _compat
from agl_verl.config_checks import ROOT, check_given, check_merged
from agl_verl.cpu import ROLLOUT, TRANSFER

_CPU_FSDP: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "strategy": "fsdp2",
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
        # Weights that only compute lie in pinned memory with verl, of which a CPU has none. The
        # optimizer that others need is never asked for a step.
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
_GPU: Final[Mapping[str, Any]] = MappingProxyType({"rollout": {"name": "vllm"}})
_TRANSFERS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "cpu": {"backend": TRANSFER, "custom_backend_module": "agl_verl.cpu.weights"},
        "cuda": {"backend": "nccl"},
    }
)
"""By device, how weights come to replicas on devices of their own."""


def make_config(
    given: Mapping[str, Any],
    *,
    device: str,
    model: str,
    setup: AlgorithmSetup | None,
    actor: Mapping[str, Any],
) -> Any:
    """The configuration that verl's workers are made with.

    Args:
        given: What the user wrote under ``[verl]``.
        device: ``cpu`` or ``cuda``.
        model: Path or hub name of the trained policy's weights.
        setup: How to train; None serves only.
        actor: What the loss sets of ``actor_rollout_ref.actor``.

    Raises:
        ConfigError: a key is unknown or belongs elsewhere, or a value is of the wrong kind or
            refused by verl.
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
    layers = [{ROOT: _plain(_CPU if device == "cpu" else _GPU)}, ours, _setup(setup), dict(given)]
    merged = OmegaConf.merge(config, *layers)
    if has_own_devices(merged):
        transfer = {ROOT: {"rollout": {"checkpoint_engine": _plain(_TRANSFERS[device])}}}
        merged = OmegaConf.merge(config, layers[0], transfer, *layers[1:])
    check_merged(merged, device=device)
    return merged


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
    """Whether replicas of the trained policy lie on other devices than the training workers."""
    return bool(config[ROOT].rollout.nnodes)


def replica_size(rollout: Any) -> int:
    """Devices of one replica."""
    return (
        int(rollout.tensor_model_parallel_size)
        * int(rollout.data_parallel_size)
        * int(rollout.pipeline_model_parallel_size)
    )


def has_adapter(model: Any) -> bool:
    """Whether verl trains a low-rank adapter, which it takes under two names."""
    return int(model.get("lora", {}).get("rank", 0) or 0) > 0 or int(model.lora_rank or 0) > 0

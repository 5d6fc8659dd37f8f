"""verl's configuration: its defaults, what a run says, and what the user adds under ``[verl]``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, cast

from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup
from agl_verl import _compat
from agl_verl.cpu import ROLLOUT

_ROOT: Final = "actor_rollout_ref"

_OURS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "model.path": "model",
        "actor.optim.lr": "algorithm.lr",
        "actor.optim.weight_decay": "algorithm.weight_decay",
        "actor.optim.clip_grad": "algorithm.max_grad_norm",
        "actor.grad_clip": "algorithm.max_grad_norm",
        "actor.ppo_epochs": "algorithm.epochs",
        "actor.ppo_mini_batch_size": "algorithm.minibatches",
        "actor.use_kl_loss": "algorithm.kl_weight",
        "actor.kl_loss_coef": "algorithm.kl_weight",
        "actor.policy_loss": "algorithm.policy_loss",
        "actor.loss_agg_mode": "algorithm.loss_agg_mode",
        "actor.clip_ratio": "algorithm.clip_low and algorithm.clip_high",
        "actor.clip_ratio_low": "algorithm.clip_low",
        "actor.clip_ratio_high": "algorithm.clip_high",
        "actor.clip_ratio_c": "algorithm.clip_ratio_c",
        "actor.shuffle": "seed",
        "actor.data_loader_seed": "seed",
        "rollout.n": "algorithm.group_size",
        "rollout.temperature": "rollout.temperature",
    }
)
"""verl's options below ``actor_rollout_ref`` that a run states elsewhere."""

_ELSEWHERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "data": "[tasks] and train.tasks_per_step",
        "algorithm": "[algorithm]",
        "critic": "an estimator that needs no critic",
        "reward": "[[rewards]]",
        "reward_model": "[[rewards]]",
        "custom_reward_function": "[[rewards]]",
        "trainer": "[train]",
    }
)
"""Sections of verl's own trainer, whose place the training loop takes, and what to use instead."""

_TRAINER: Final = ("n_gpus_per_node", "nnodes")
_READ: Final = (_ROOT, "ray_kwargs", "trainer")

_CPU: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "actor": {
            "strategy": "fsdp2",
            "use_torch_compile": False,
            "ppo_max_token_len_per_gpu": 4096,
            "fsdp_config": {
                "strategy": "fsdp2",
                "dtype": "float32",
                "use_torch_compile": False,
                "mixed_precision": {
                    "param_dtype": "fp32",
                    "reduce_dtype": "fp32",
                    "buffer_dtype": "fp32",
                },
            },
        },
        "model": {
            "use_remove_padding": False,
            "enable_gradient_checkpointing": False,
            "override_config": {"attn_implementation": "sdpa"},
            "lora": {"merge": True},
        },
        "rollout": {"name": ROLLOUT, "free_cache_engine": False, "dtype": "float32"},
    }
)
_GPU: Final[Mapping[str, Any]] = MappingProxyType({"rollout": {"name": "vllm"}})


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
        ConfigError: a key is unknown, belongs elsewhere, or verl refuses a value.
    """
    from omegaconf import OmegaConf  # noqa: PLC0415

    config = _compat.default_config()
    _check(given, config)
    OmegaConf.set_struct(config, False)
    ours = {
        _ROOT: {
            "model": {"path": model},
            "actor": {"use_dynamic_bsz": True, "checkpoint": {"save_contents": _CONTENTS}, **actor},
            "rollout": {"load_format": "auto", "tensor_model_parallel_size": 1},
        },
        "trainer": {"device": device, "n_gpus_per_node": 1},
    }
    layers = [{_ROOT: _plain(_CPU if device == "cpu" else _GPU)}, ours, _setup(setup), dict(given)]
    merged = OmegaConf.merge(config, *layers)
    OmegaConf.resolve(merged)
    _check_values(merged)
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
    return {_ROOT: {"actor": {"optim": optimizer, **divergence, **seeded}}}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in cast("Mapping[str, Any]", value).items()}
    return value


def _check(given: Mapping[str, Any], config: Any) -> None:
    problems = list(_misplaced(given))
    known = {key: value for key, value in given.items() if key in _READ}
    problems += _unknown(known, config, "verl")
    if problems:
        raise ConfigError(f"Configuration: {'; '.join(problems)}")


def _misplaced(given: Mapping[str, Any]) -> Iterator[str]:
    for key in given:
        if key not in _READ:
            instead = _ELSEWHERE.get(key)
            told = f"use {instead}" if instead else f"here go {', '.join(_READ)}"
            yield f"'verl.{key}' is of verl's own trainer, whose place agl-core takes: {told}"
    trainer = given.get("trainer")
    for key in cast("Mapping[str, Any]", trainer) if isinstance(trainer, Mapping) else ():
        if key not in _TRAINER:
            yield (
                f"'verl.trainer.{key}' is of verl's own trainer, whose place agl-core takes: use "
                f"[train]; here go {', '.join(_TRAINER)}"
            )
    root = given.get(_ROOT)
    for path, ours in _OURS.items():
        if isinstance(root, Mapping) and _has(cast("Mapping[str, Any]", root), path):
            yield f"'verl.{_ROOT}.{path}' is what {ours} says: set that"


def _has(tree: Mapping[str, Any], path: str) -> bool:
    current: Any = tree
    for part in path.split("."):
        if not isinstance(current, Mapping) or part not in current:
            return False
        current = cast("Mapping[str, Any]", current)[part]
    return True


def _unknown(given: Mapping[str, Any], node: Any, path: str) -> list[str]:
    """What of `given` verl does not know: neither its defaults nor its classes have it."""
    known = _keys(node)
    if not known:
        return []
    found: list[str] = []
    for key, value in given.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(known))}"
            found.append(f"verl has no option '{path}.{key}': {hint}")
        elif isinstance(value, Mapping):
            inner = node.get(key) if hasattr(node, "get") else None
            if hasattr(inner, "keys"):
                found += _unknown(cast("Mapping[str, Any]", value), inner, f"{path}.{key}")
    return found


def _keys(node: Any) -> set[str]:
    from hydra.utils import get_class  # noqa: PLC0415

    keys = {str(key) for key in node}
    target = node.get("_target_")
    if target:
        made = get_class(target)
        keys |= {field.name for field in fields(made)} if is_dataclass(made) else set()
    return keys - {"_target_"}


def _check_values(config: Any) -> None:
    """Let verl's classes look at the values."""
    root = config[_ROOT]
    for section in ("actor", "rollout"):
        try:
            _compat.omega_conf_to_dataclass(root[section])
        except (ValueError, TypeError, AssertionError, NotImplementedError) as error:
            raise ConfigError(
                f"Configuration: verl refuses verl.{_ROOT}.{section}: {error}"
            ) from error

"""Checks of the user's options for verl, before anything starts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final, cast

from agl_core.errors import ConfigError
from agl_verl import _compat

__all__ = ["ROOT", "check_given", "check_merged"]

ROOT: Final = "actor_rollout_ref"

_OURS: Final[Mapping[str, str]] = MappingProxyType(
    {
        f"{ROOT}.model.path": "model",
        f"{ROOT}.actor.optim.lr": "algorithm.lr",
        f"{ROOT}.actor.optim.weight_decay": "algorithm.weight_decay",
        f"{ROOT}.actor.optim.clip_grad": "algorithm.max_grad_norm",
        f"{ROOT}.actor.grad_clip": "algorithm.max_grad_norm",
        f"{ROOT}.actor.ppo_epochs": "algorithm.epochs",
        f"{ROOT}.actor.ppo_mini_batch_size": "algorithm.minibatches",
        f"{ROOT}.actor.use_kl_loss": "algorithm.kl_weight",
        f"{ROOT}.actor.kl_loss_coef": "algorithm.kl_weight",
        f"{ROOT}.actor.policy_loss": "algorithm.policy_loss",
        f"{ROOT}.actor.loss_agg_mode": "algorithm.loss_agg_mode",
        f"{ROOT}.actor.clip_ratio": "algorithm.clip_low and algorithm.clip_high",
        f"{ROOT}.actor.clip_ratio_low": "algorithm.clip_low",
        f"{ROOT}.actor.clip_ratio_high": "algorithm.clip_high",
        f"{ROOT}.actor.clip_ratio_c": "algorithm.clip_ratio_c",
        f"{ROOT}.actor.shuffle": "seed",
        f"{ROOT}.actor.data_loader_seed": "seed",
        f"{ROOT}.rollout.n": "algorithm.group_size",
        f"{ROOT}.rollout.temperature": "rollout.temperature",
        "ray_kwargs.ray_init.address": "engine.ray_address",
    }
)
"""verl's options that are set by options of agl-core."""

_WHOLE: Final = "a checkpoint holds all that serving and a resumption need"
_FILLED: Final = (
    "micro-batches are filled up to actor.ppo_max_token_len_per_gpu, whatever their rows"
)
_SAMPLE: Final = "agents sample for themselves"
_FIXED: Final[Mapping[str, str]] = MappingProxyType(
    {
        f"{ROOT}.actor.checkpoint.save_contents": _WHOLE,
        f"{ROOT}.actor.checkpoint.load_contents": _WHOLE,
        f"{ROOT}.actor.use_dynamic_bsz": _FILLED,
        f"{ROOT}.ref.log_prob_use_dynamic_bsz": _FILLED,
        f"{ROOT}.rollout.log_prob_use_dynamic_bsz": _FILLED,
        f"{ROOT}.actor.entropy_coeff": "no entropy is computed",
        f"{ROOT}.model.lora.merge": "replicas always get an adapter merged into its weights",
        f"{ROOT}.rollout.agent": _SAMPLE,
        f"{ROOT}.rollout.multi_turn": _SAMPLE,
        f"{ROOT}.rollout.val_kwargs": _SAMPLE,
        f"{ROOT}.rollout.response_length": (
            "verl gives it to vLLM as a limit of every answer, so it is as long as "
            "rollout.max_model_len; rollout.max_tokens of the run limits answers"
        ),
        "trainer.device": "engine.device says it",
    }
)
"""verl's options that must not be set, and why."""

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
"""Sections of verl's own trainer, which the training loop replaces, and what to use instead."""

_TRAINER: Final = ("n_gpus_per_node", "nnodes")
_TRACKING: Final = ("logger", "project_name")
_READ: Final = (ROOT, "ray_kwargs", "trainer")
_AXES: Final = (
    "tensor_model_parallel_size",
    "data_parallel_size",
    "pipeline_model_parallel_size",
)
"""Options whose product is the number of devices of one replica."""
_OPEN: Final = ("ray_kwargs.ray_init.",)
"""Tables that verl passes to other libraries; their keys are not checked."""

_IN_PLACE: Final = "naive"
_STRATEGIES: Final = ("fsdp", "fsdp2")
_PACKAGES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "nccl": ". verl[vllm] does not install cupy: pip install 'verl[cupy-cu130]', which is "
        "cupy-cuda13x for CUDA 13, or cupy-cuda12x for CUDA 12"
    }
)
"""Advice for packages that a checkpoint engine needs and verl[vllm] does not install."""
_SERVERS: Final[Mapping[str, str]] = MappingProxyType({"vllm": "vllm"})
"""Package that each rollout needs."""


def check_given(given: Mapping[str, Any], config: Any) -> None:
    """Check the user's options against verl's defaults.

    Raises:
        ConfigError: lists every key that is unknown or belongs to another section, and every value
            of the wrong type.
    """
    known = {key: value for key, value in given.items() if key in _READ}
    problems = [*_misplaced(given), *_wrong(known, config, "")]
    if problems:
        raise ConfigError(f"Configuration: {'; '.join(dict.fromkeys(problems))}")


def check_merged(config: Any, *, device: str, here: bool = True) -> None:
    """Resolve references in the whole configuration and validate it with verl's classes.

    Args:
        config: verl's merged configuration.
        device: ``cpu`` or ``cuda``.
        here: Whether the run will start in this environment, so that packages must be installed.

    Raises:
        ConfigError: verl rejects a value, or the numbers of devices are inconsistent.
    """
    from hydra.errors import HydraException  # noqa: PLC0415
    from omegaconf import OmegaConf  # noqa: PLC0415
    from omegaconf.errors import OmegaConfBaseException  # noqa: PLC0415

    try:
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        raise ConfigError(f"Configuration: a reference under [verl] is wrong: {error}") from error
    _check_choices(config, device, here=here)
    for section in ("actor", "rollout"):
        try:
            _compat.omega_conf_to_dataclass(config[ROOT][section])
        except (
            HydraException,
            ValueError,
            TypeError,
            AssertionError,
            NotImplementedError,
        ) as error:
            why = error.__cause__ if isinstance(error, HydraException) else error
            raise ConfigError(
                f"Configuration: verl refuses verl.{ROOT}.{section}: {why or error}"
            ) from error
    _check_sizes(config)
    _check_transfer(config[ROOT].rollout, here=here)


def _check_choices(config: Any, device: str, *, here: bool) -> None:
    strategy, rollout = config[ROOT].actor.strategy, config[ROOT].rollout.name
    if strategy not in _STRATEGIES:
        raise ConfigError(
            f"Configuration: verl.{ROOT}.actor.strategy = {strategy!r}: rows are trained with "
            f"{' or '.join(_STRATEGIES)}"
        )
    if rollout == "sglang":
        raise ConfigError(
            f"Configuration: verl.{ROOT}.rollout.name = 'sglang' cannot train: verl starts SGLang "
            f"without a tokenizer (skip_tokenizer_init), so that it refuses messages, and its "
            f"chat endpoint gives no token ids. Use rollout.name = 'vllm'"
        )
    servers = _compat.rollout_names()
    if rollout not in servers:
        raise ConfigError(
            f"Configuration: verl.{ROOT}.rollout.name = {rollout!r}: on device {device!r} verl "
            f"serves with one of {', '.join(servers)}"
        )
    package = _SERVERS.get(rollout)
    if here and package is not None and find_spec(package) is None:
        raise ConfigError(
            f"verl.{ROOT}.rollout.name is {rollout!r}, but {package} is not installed: install "
            f"the version that verl asks for, pip install 'verl[{package}]'"
        )


def _check_sizes(config: Any) -> None:
    rollout = config[ROOT].rollout
    place, devices = "trainer", _product(config.trainer, "trainer", _TRAINER)
    if rollout.nnodes:
        place = f"{ROOT}.rollout"
        devices = _product(rollout, place, _TRAINER)
    replica = _product(rollout, f"{ROOT}.rollout", _AXES)
    if devices % replica:
        raise ConfigError(
            f"Configuration: a replica takes {replica} devices, the product of "
            f"{', '.join(_AXES)} in verl.{ROOT}.rollout, but there are {devices}, "
            f"verl.{place}.{' times '.join(_TRAINER)}, which is no multiple of that"
        )


def _check_transfer(rollout: Any, *, here: bool) -> None:
    """Check the checkpoint engine, which sends new weights to the replicas.

    Raises:
        ConfigError: it does not fit the replicas' devices, or it is not available.
    """
    backend, key = rollout.checkpoint_engine.backend, f"verl.{ROOT}.rollout.checkpoint_engine"
    if (backend == _IN_PLACE) == bool(rollout.nnodes):
        raise ConfigError(
            f"Configuration: {key}.backend = {backend!r}, and verl.{ROOT}.rollout.nnodes = "
            f"{rollout.nnodes!r}: {_IN_PLACE!r} is for replicas on the trainer's devices "
            f"(nnodes = 0), any other for devices of their own"
        )
    if not here:
        return
    try:
        _compat.checkpoint_engine(backend, rollout.checkpoint_engine.custom_backend_module)
    except (ValueError, ImportError) as error:
        fix = _PACKAGES.get(backend, "") if "cupy" in str(error) else ""
        raise ConfigError(f"Configuration: {key}.backend = {backend!r}: {error}{fix}") from error


def _product(section: Any, path: str, names: Sequence[str]) -> int:
    for name in names:
        if not isinstance(section[name], int) or section[name] < 1:
            raise ConfigError(
                f"Configuration: verl.{path}.{name} = {section[name]!r}: must be a whole number, "
                f"1 or more"
            )
    return math.prod(section[name] for name in names)


def _misplaced(given: Mapping[str, Any]) -> Iterator[str]:
    for key in given:
        if key not in _READ:
            instead = _ELSEWHERE.get(key)
            advice = f"use {instead}" if instead else f"the keys read are {', '.join(_READ)}"
            yield f"'verl.{key}' belongs to verl's own trainer, which agl-core replaces: {advice}"
    for path, why in _FIXED.items():
        if _has(given, path):
            yield f"'verl.{path}' cannot be set: {why}"
    if _has(given, f"{ROOT}.rollout.{_TRAINER[0]}") and not _has(given, f"{ROOT}.rollout.nnodes"):
        yield (
            f"'verl.{ROOT}.rollout.{_TRAINER[0]}' is read with rollout.nnodes alone, which gives "
            f"replicas devices of their own: set both, or verl.trainer.{_TRAINER[0]}"
        )
    for path, ours in _OURS.items():
        if _has(given, path):
            yield f"'verl.{path}' is what {ours} says: set that"
    trainer = given.get("trainer")
    for key in cast("Mapping[str, Any]", trainer) if isinstance(trainer, Mapping) else ():
        if key not in _TRAINER and f"trainer.{key}" not in _FIXED:
            instead = "[[trackers]] with name = 'verl'" if key in _TRACKING else "[train]"
            yield (
                f"'verl.trainer.{key}' is of verl's own trainer, whose place agl-core takes: use "
                f"{instead}; here go {', '.join(_TRAINER)}"
            )


def _has(tree: Mapping[str, Any], path: str) -> bool:
    current: Any = tree
    for part in path.split("."):
        if not isinstance(current, Mapping) or part not in current:
            return False
        current = cast("Mapping[str, Any]", current)[part]
    return True


def _wrong(given: Mapping[str, Any], node: Any, path: str) -> list[str]:
    """Return a message for every unknown key and every value of the wrong type in `given`.

    Known keys are those of verl's defaults and of the classes that read them.
    """
    known = _keys(node)
    found: list[str] = []
    for key, value in given.items():
        at = f"{path}.{key}" if path else key
        if key in known:
            default = node.get(key)
            found += _wrong_value(value, default, at)
        elif known and not f"{path}.".startswith(_OPEN):
            near = get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(known))}"
            found.append(f"verl has no option 'verl.{at}': {hint}")
    return found


def _wrong_value(value: Any, default: Any, path: str) -> list[str]:
    """Check that numbers, booleans and tables keep their type; verl checks the rest."""
    wrong = f"verl.{path} = {value!r}: must be"
    if hasattr(default, "keys"):
        if isinstance(value, Mapping):
            return _wrong(cast("Mapping[str, Any]", value), default, path)
        return [f"{wrong} a table"]
    refers = isinstance(value, str) and "${" in value
    if default is None or value is None or refers:
        return []
    if isinstance(default, bool):
        return [] if isinstance(value, bool) else [f"{wrong} true or false"]
    if isinstance(default, (int, float)):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return [] if number else [f"{wrong} a number"]
    return []


def _keys(node: Any) -> set[str]:
    from hydra.utils import get_class  # noqa: PLC0415

    keys = {str(key) for key in node}
    target = node.get("_target_")
    if target:
        made = get_class(target)
        keys |= {field.name for field in fields(made)} if is_dataclass(made) else set()
    return keys - {"_target_"}

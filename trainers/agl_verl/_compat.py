"""The only module that imports verl: every name of verl that this package uses.

Names are imported at first use, because verl imports its plugins, such as `agl_verl.cpu`, during
its own import.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from packaging.specifiers import SpecifierSet

from agl_core.errors import ConfigError

SUPPORTED: Final = SpecifierSet(">=0.9.1,<0.10")
"""Supported versions of verl; the extra in pyproject.toml has the same range."""

_PLACES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ActorRolloutRefWorker": "verl.workers.engine_workers",
        "BaseRollout": "verl.workers.rollout.base",
        "CheckpointEngine": "verl.checkpoint_engine.base",
        "CheckpointEngineManager": "verl.checkpoint_engine.base",
        "CheckpointEngineRegistry": "verl.checkpoint_engine",
        "Dispatch": "verl.single_controller.base.decorator",
        "PlatformBase": "verl.plugin.platform.platform_base",
        "PlatformRegistry": "verl.plugin.platform.platform_manager",
        "RayClassWithInitArgs": "verl.single_controller.ray",
        "RayWorkerGroup": "verl.single_controller.ray",
        "ResourcePoolManager": "verl.single_controller.ray",
        "RolloutReplica": "verl.workers.rollout.replica",
        "RolloutReplicaRegistry": "verl.workers.rollout.replica",
        "Tracking": "verl.utils.tracking",
        "create_tcp_store": "verl.utils.distributed",
        "get_platform": "verl.plugin.platform.platform_manager",
        "get_ppo_ray_runtime_env": "verl.trainer.constants_ppo",
        "omega_conf_to_dataclass": "verl.utils.config",
        "ppo_loss": "verl.workers.utils.losses",
        "reduce_metrics": "verl.utils.metric",
        "register": "verl.single_controller.base.decorator",
        "response_from_nested": "verl.workers.utils.padding",
        "split_resource_pool": "verl.single_controller.ray.base",
        "rollout_classes": "verl.workers.rollout.base:_ROLLOUT_REGISTRY",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)


def check_version() -> None:
    """Check that a supported version of verl is installed.

    Raises:
        ImportError: verl is not installed.
        ConfigError: its version is not supported.
    """
    try:
        found = importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError as error:
        raise ModuleNotFoundError("No module named 'verl'", name="verl") from error
    if found not in SUPPORTED:
        raise ConfigError(
            f"Engine 'verl' knows verl {SUPPORTED}, but {found} is installed: run "
            f"pip install 'verl{SUPPORTED}'"
        )


def advantage_estimator(name: str) -> Callable[..., Any]:
    """Return verl's advantage estimator of that name."""
    return importlib.import_module("verl.trainer.ppo.core_algos").get_adv_estimator_fn(name)


def policy_loss(name: str) -> Callable[..., Any]:
    """Return verl's policy loss of that name."""
    return importlib.import_module("verl.trainer.ppo.core_algos").get_policy_loss_fn(name)


def checkpoint_engine(backend: str, module: str | None) -> Any:
    """Return a checkpoint engine by name, after importing `module`, which may register it.

    Raises:
        ValueError: it is unknown, or a package it needs is missing; lists those available.
    """
    if module:
        importlib.import_module(module)
    return importlib.import_module("verl.checkpoint_engine").CheckpointEngineRegistry.get(backend)


def rollout_names() -> list[str]:
    """Return the sorted names of verl's rollouts; their packages may not be installed."""
    registry = importlib.import_module("verl.workers.rollout.replica").RolloutReplicaRegistry
    return sorted(registry._registry)  # noqa: SLF001 (no public function)


def default_config() -> Any:
    """Return verl's default configuration of a PPO trainer as an OmegaConf tree."""
    from hydra import compose, initialize_config_module  # noqa: PLC0415
    from hydra.core.global_hydra import GlobalHydra  # noqa: PLC0415

    importlib.import_module("verl")
    GlobalHydra.instance().clear()
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer")

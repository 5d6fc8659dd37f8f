"""The only importer of verl: everything that this package takes of it, by name.

Names are looked up when they are used, since verl imports its plugins, of which `agl_verl.cpu` is
one, while it is being imported itself.
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
"""Of verl; the extra says the same."""

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
    """Check that verl is there and of a version that this package knows.

    Raises:
        ImportError: it is not installed.
        ConfigError: it is of another version.
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
    """Verl's advantage estimator of that name."""
    return importlib.import_module("verl.trainer.ppo.core_algos").get_adv_estimator_fn(name)


def policy_loss(name: str) -> Callable[..., Any]:
    """Verl's policy loss of that name."""
    return importlib.import_module("verl.trainer.ppo.core_algos").get_policy_loss_fn(name)


def checkpoint_engine(backend: str, module: str | None) -> Any:
    """Verl's checkpoint engine of that name, which `module` registers where it is not verl's own.

    Raises:
        ValueError: there is none, or it lacks a package; lists those available.
    """
    if module:
        importlib.import_module(module)
    return importlib.import_module("verl.checkpoint_engine").CheckpointEngineRegistry.get(backend)


def rollout_names() -> list[str]:
    """What verl can serve with here, if it is installed, sorted."""
    registry = importlib.import_module("verl.workers.rollout.replica").RolloutReplicaRegistry
    return sorted(registry._registry)  # noqa: SLF001 (there is no function for it)


def default_config() -> Any:
    """Verl's own configuration of a PPO trainer, with its defaults, as an OmegaConf tree."""
    from hydra import compose, initialize_config_module  # noqa: PLC0415
    from hydra.core.global_hydra import GlobalHydra  # noqa: PLC0415

    importlib.import_module("verl")
    GlobalHydra.instance().clear()
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer")

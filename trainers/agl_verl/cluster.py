"""The Ray cluster that verl's workers live in."""

from __future__ import annotations

import os
import sys
from typing import Any, Final
from uuid import uuid4

from agl_core.errors import ConfigError
from agl_verl.cpu import ENVIRONMENT

_ADDRESS: Final = "RAY_ADDRESS"
_CPUS_PER_WORKER: Final = 4
"""What verl reserves beside a device, and one for the server."""


def choose_device(wanted: str, address: str | None) -> str:
    """``cpu`` or ``cuda``.

    Raises:
        ConfigError: there is no GPU although one is asked for.
    """
    import torch  # noqa: PLC0415

    remote = address or os.environ.get(_ADDRESS)
    if wanted == "auto":
        return "cuda" if remote or torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not remote and not torch.cuda.is_available():
        raise ConfigError(
            "engine.device is 'cuda', but torch sees no GPU here and there is no Ray cluster to "
            "join: set engine.device = 'cpu' to train on this machine's CPU, or "
            "engine.ray_address to a cluster with GPUs"
        )
    return wanted


def use_platform(device: str) -> None:
    """Let verl know the platform, before it is imported.

    Raises:
        ConfigError: verl was imported for another one.
    """
    cpu = os.environ.get("VERL_PLATFORM") == ENVIRONMENT["VERL_PLATFORM"]
    if "verl" in sys.modules and cpu != (device == "cpu"):
        raise ConfigError(
            f"verl was imported for another device than {device!r} in this process: import it "
            f"after the engine is made, or start another process"
        )
    if device == "cpu":
        os.environ.update(ENVIRONMENT)


class Cluster:
    """A connection to Ray; a cluster that it started ends with it."""

    def __init__(self, *, device: str, address: str | None) -> None:
        self._device = device
        self._address = address or os.environ.get(_ADDRESS)
        self._connected = False

    def connect(self, config: Any) -> None:
        """Join the cluster, or start one.

        Args:
            config: verl's, for ``ray_kwargs`` and the number of devices.

        Raises:
            ConfigError: the cluster cannot be reached, or has too few devices.
        """
        import ray  # noqa: PLC0415

        devices = int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes)
        if not ray.is_initialized():
            try:
                ray.init(**self._arguments(config, devices))
            except (ConnectionError, ValueError) as error:
                raise ConfigError(
                    f"Cannot join the Ray cluster {self._address!r}: {error}. Check "
                    f"engine.ray_address, or leave it out to start a cluster of the run's own"
                ) from error
            self._connected = True
        self._check(devices)

    def close(self) -> None:
        """Leave; ends what was started by `connect`. Idempotent."""
        if self._connected:
            import ray  # noqa: PLC0415

            ray.shutdown()
            self._connected = False

    def _arguments(self, config: Any, devices: int) -> dict[str, Any]:
        from omegaconf import OmegaConf  # noqa: PLC0415

        from agl_verl import _compat  # noqa: PLC0415

        written: Any = OmegaConf.to_container(config.ray_kwargs.get("ray_init", {}))
        given: dict[str, Any] = {key: value for key, value in written.items() if value is not None}
        environment: dict[str, Any] = {
            **_compat.get_ppo_ray_runtime_env(config),
            **given.pop("runtime_env", {}),
        }
        if self._device == "cpu":
            variables = {**environment.get("env_vars", {}), **ENVIRONMENT}
            environment["env_vars"] = variables
        environment = {key: value for key, value in environment.items() if value is not None}
        arguments: dict[str, Any] = {
            "namespace": f"agl-verl-{uuid4().hex[:8]}",
            "log_to_driver": False,
            "runtime_env": environment,
        }
        if self._address:
            return {"address": self._address, **arguments, **given}
        local: dict[str, Any] = {"address": "local", "include_dashboard": False}
        if self._device == "cpu":
            local |= {"num_cpus": _CPUS_PER_WORKER * devices, "num_gpus": devices}
        return {**local, **arguments, **given}

    def _check(self, devices: int) -> None:
        import ray  # noqa: PLC0415

        there = ray.cluster_resources()
        if there.get("GPU", 0) < devices:
            how = (
                f"start it with ray start --head --num-gpus={devices}, which are no real ones"
                if self._device == "cpu"
                else "lower verl.trainer.n_gpus_per_node or nnodes, or add nodes"
            )
            raise ConfigError(
                f"The Ray cluster has {there.get('GPU', 0):g} devices, but the run needs "
                f"{devices}: {how}"
            )

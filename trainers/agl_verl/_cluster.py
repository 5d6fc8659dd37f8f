"""The Ray cluster that runs verl's workers."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from agl_core.errors import ConfigError
from agl_verl._config import has_own_devices, replica_size
from agl_verl._config_checks import ROOT
from agl_verl.cpu import ENVIRONMENT

_ADDRESS: Final = "RAY_ADDRESS"
_PLATFORM: Final = "VERL_PLATFORM"
_MODULES: Final = "VERL_USE_EXTERNAL_MODULES"
_CPUS: Final = 3
"""CPUs that verl reserves for each device of the trainer."""
_CPUS_OF_ROLLOUT: Final = 2
"""CPUs that verl reserves for each device that only a replica uses."""


def choose_device(wanted: str, address: str | None) -> str:
    """Return ``cpu`` or ``cuda``.

    Raises:
        ConfigError: `wanted` is ``cuda``, torch finds no GPU, and no cluster address is set.
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
    """Set the environment variables that select verl's platform; call it before importing verl.

    Raises:
        ConfigError: verl was already imported for another platform.
    """
    cpu = os.environ.get(_PLATFORM) == ENVIRONMENT[_PLATFORM]
    if "verl" in sys.modules and cpu != (device == "cpu"):
        raise ConfigError(
            f"verl was imported for another device than {device!r} in this process: import it "
            f"after the engine is made, or start another process"
        )
    os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")
    if device == "cpu":
        os.environ.update(_variables(os.environ))
    elif cpu:
        _forget(os.environ)


def _forget(environment: MutableMapping[str, str]) -> None:
    """Remove the variables that an earlier engine on a CPU set."""
    for name, value in ENVIRONMENT.items():
        kept = [each for each in environment.pop(name, "").split(",") if each not in ("", value)]
        if kept:
            environment[name] = ",".join(kept)


def _variables(there: Mapping[str, str]) -> dict[str, str]:
    """Return verl's variables for a CPU, keeping the external modules that `there` lists."""
    modules = [*there.get(_MODULES, "").split(","), ENVIRONMENT[_MODULES]]
    return {**ENVIRONMENT, _MODULES: ",".join(dict.fromkeys(filter(None, modules)))}


@dataclass(frozen=True)
class _Claim:
    """The devices that one part of the run needs."""

    whom: str
    keys: str
    """The options that set the number."""
    places: int
    devices_each: int
    """Devices of each place, all on one node."""
    cpus: int
    """CPUs that verl reserves for each device."""

    @property
    def devices(self) -> int:
        return self.places * self.devices_each

    def take(self, left: list[list[float]]) -> int:
        """Subtract the places from `left`, fullest nodes first, and return how many fit.

        Args:
            left: Devices and CPUs left on each node.
        """
        for taken in range(self.places):
            fitting = [
                node
                for node in left
                if node[0] >= self.devices_each and node[1] >= self.cpus * self.devices_each
            ]
            if not fitting:
                return taken
            node = min(fitting)
            node[0] -= self.devices_each
            node[1] -= self.cpus * self.devices_each
        return self.places


def _claims(config: Any) -> list[_Claim]:
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    each = int(trainer.n_gpus_per_node)
    keys = "verl.trainer.n_gpus_per_node and nnodes"
    claims = [_Claim("training", keys, int(trainer.nnodes), each, _CPUS)]
    if has_own_devices(config):
        per_node, replica = int(rollout.n_gpus_per_node), replica_size(rollout)
        each = min(per_node, replica)
        places = per_node * int(rollout.nnodes) // each
        keys = f"verl.{ROOT}.rollout.n_gpus_per_node and nnodes"
        claims.append(_Claim("rollouts", keys, places, each, _CPUS_OF_ROLLOUT))
    return claims


class Cluster:
    """A connection to Ray; closing it stops the cluster if it started one."""

    def __init__(self, *, device: str, address: str | None) -> None:
        self._device = device
        self._address = address or os.environ.get(_ADDRESS)
        self._connected = False

    def connect(self, config: Any) -> None:
        """Connect to the cluster, or start one.

        Args:
            config: verl's configuration, with ``ray_kwargs`` and the numbers of devices.

        Raises:
            ConfigError: the cluster cannot be reached or started, or has too few devices or CPUs.
        """
        import ray  # noqa: PLC0415

        if not ray.is_initialized():
            arguments = self._arguments(config)
            try:
                ray.init(**arguments)
            except Exception as error:  # Ray raises a bare Exception if a node does not start
                raise ConfigError(self._refused(error)) from error
            self._connected = True
        elif self._device == "cpu":
            _check_variables()
        self._check(_claims(config))

    def close(self) -> None:
        """Disconnect, and stop the cluster if `connect` started it. Idempotent."""
        if self._connected:
            import ray  # noqa: PLC0415

            ray.shutdown()
            self._connected = False

    def _arguments(self, config: Any) -> dict[str, Any]:
        """Return the arguments of ``ray.init``; the user's keys override ours."""
        from omegaconf import OmegaConf  # noqa: PLC0415

        from agl_verl import _compat  # noqa: PLC0415

        written: Any = OmegaConf.to_container(config.ray_kwargs.get("ray_init", {}))
        given: dict[str, Any] = {key: value for key, value in written.items() if value is not None}
        verls: dict[str, Any] = _compat.get_ppo_ray_runtime_env(config)
        users: dict[str, Any] = given.pop("runtime_env", {})
        variables = {**(verls.get("env_vars") or {}), **(users.get("env_vars") or {})}
        if self._device == "cpu":
            variables |= _variables({**os.environ, **variables})
        environment = {**verls, **users, "env_vars": variables}
        arguments: dict[str, Any] = {
            "namespace": f"agl-verl-{uuid4().hex[:8]}",
            "log_to_driver": False,
            "logging_level": logging.ERROR,  # errors are raised
            "runtime_env": {key: each for key, each in environment.items() if each is not None},
        }
        if self._address:
            return {"address": self._address, **arguments, **given}
        local: dict[str, Any] = {"address": "local", "include_dashboard": False}
        if self._device == "cpu":
            devices = sum(claim.devices for claim in _claims(config))
            local |= {"num_cpus": (_CPUS + 1) * devices, "num_gpus": devices}
        return {**local, **arguments, **given}

    def _refused(self, error: Exception) -> str:
        if self._address:
            return (
                f"Cannot join the Ray cluster {self._address!r}: {error}. Check "
                f"engine.ray_address, or leave it and {_ADDRESS} out to start a cluster of the "
                f"run's own"
            )
        return f"Cannot start Ray on this machine: {error}. Check verl.ray_kwargs.ray_init"

    def _check(self, claims: Sequence[_Claim]) -> None:
        import ray  # noqa: PLC0415

        there = [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
        devices = sum(node.get("GPU", 0) for node in there)
        needed = sum(claim.devices for claim in claims)
        if devices < needed:
            raise ConfigError(
                f"The Ray cluster has {devices:g} devices, but the run needs {needed}: "
                f"{self._more_devices(needed)}"
            )
        left = [[node.get("GPU", 0), node.get("CPU", 0)] for node in there]
        for claim in sorted(claims, key=lambda claim: -claim.devices_each):
            fitting = claim.take(left)
            if fitting < claim.places:
                nodes = ", ".join(
                    f"{node.get('GPU', 0):g}/{node.get('CPU', 0):g}" for node in there
                )
                raise ConfigError(
                    f"The Ray cluster has room for {fitting} of {claim.places} times "
                    f"{claim.devices_each} devices on one node with {claim.cpus} CPUs each, for "
                    f"{claim.whom}; devices/CPUs of its nodes: {nodes}. Change {claim.keys}, or "
                    f"let Ray count more CPUs: ray start --num-cpus, or "
                    f"verl.ray_kwargs.ray_init.num_cpus where the run starts it"
                )

    def _more_devices(self, needed: int) -> str:
        if self._device != "cpu":
            return (
                "lower verl.trainer.n_gpus_per_node or nnodes, add nodes, or set engine.device = "
                "'cpu' to train on CPUs"
            )
        return (
            f"leave out verl.ray_kwargs.ray_init.num_gpus, or start the cluster with ray start "
            f"--head --num-gpus={needed}, which are no real ones"
        )


def _check_variables() -> None:
    """Check that a connection which other code opened passes our variables to workers.

    Raises:
        ConfigError: it does not.
    """
    import ray  # noqa: PLC0415

    variables: Mapping[str, str] = ray.get_runtime_context().runtime_env.get("env_vars") or {}
    if any(variables.get(name) != value for name, value in _variables(variables).items()):
        raise ConfigError(
            "Ray is connected in this process already, without the environment that verl's "
            "workers need on a CPU: call ray.shutdown() first, or ray.init(runtime_env="
            "{'env_vars': dict(agl_verl.cpu.ENVIRONMENT)})"
        )

"""verl's replicas of one model: starting, sleeping, updating weights, replacing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from agl_core.errors import EngineError
from agl_verl import _compat
from agl_verl._config import context_of, has_adapter, has_own_devices, replica_size
from agl_verl._driver import wait_for
from agl_verl._gpu_memory import await_free_of
from agl_verl.cpu import ROLLOUT

_PING_S: Final = 10.0
State: TypeAlias = Literal["alive", "silent", "dead"]


class Replicas:
    """All replicas that serve one model. Every method blocks on Ray."""

    def __init__(self, config: Any, members: list[Any], workers: Any = None) -> None:
        self._rollout = config.actor_rollout_ref.rollout
        self._members = members
        self.model = str(members[0].model_config.path)
        self.replaced = [0] * len(members)
        """How often each replica was restarted."""
        self.apart = False
        """Whether the replicas have their own devices and serve during training."""
        self._sync = None if workers is None else _manager(config, workers, members)

    @staticmethod
    def pool(config: Any) -> Any:
        """Create the resource pool with the trainer's devices."""
        devices = [int(config.trainer.n_gpus_per_node)] * int(config.trainer.nnodes)
        manager = _compat.ResourcePoolManager(resource_pool_spec={"agl": devices}, mapping={})
        manager.create_resource_pool()
        return manager.resource_pool_dict["agl"]

    @staticmethod
    def workers(config: Any, pool: Any, *, reference: bool) -> Any:
        """Start training workers with the policy's weights, one per device."""
        import ray  # noqa: PLC0415

        from agl_verl._worker import Actor  # noqa: PLC0415

        adapters = has_adapter(config.actor_rollout_ref.model)
        alone = "actor" if has_own_devices(config) else "actor_rollout"
        made = _compat.RayClassWithInitArgs(
            cls=ray.remote(Actor),
            config=config.actor_rollout_ref,
            role="actor_rollout_ref" if reference and not adapters else alone,
        )
        group = _compat.RayWorkerGroup(
            resource_pool=pool, ray_cls_with_init=made, device_name=config.trainer.device
        )
        group.init_model()
        return group

    @classmethod
    def of_workers(cls, config: Any, workers: Any) -> Replicas:
        """Start replicas of the trained policy, on the workers' devices or on their own."""
        rollout = config.actor_rollout_ref.rollout
        apart, devices = has_own_devices(config), workers.world_size
        if apart:
            devices = int(rollout.n_gpus_per_node) * int(rollout.nnodes)
        members = [_replica(config, rank=rank) for rank in range(devices // replica_size(rollout))]
        if apart:
            wait_for(_all(member.init_standalone() for member in members))
        else:
            wait_for(_all(member.init_hybrid(workers) for member in members))
        made = cls(config, members, workers)
        made.apart = apart
        return made

    @classmethod
    def frozen(cls, config: Any, pool: Any, *, model: str, first: int) -> Replicas:
        """Start one replica of a frozen model on the trainer's devices."""
        config = config.copy()
        rollout = config.actor_rollout_ref.rollout
        context = context_of(
            model, trust_remote_code=config.actor_rollout_ref.model.trust_remote_code
        )
        if rollout.max_model_len is not None and context is not None:
            rollout.max_model_len = min(rollout.max_model_len, context)
            rollout.response_length = rollout.max_model_len
        member = _replica(config, rank=first, model=model)
        places = _compat.split_resource_pool(pool, split_size=member.world_size)
        wait_for(member.init_colocated(places[first % len(places)]))
        return cls(config, [member])

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of every replica's endpoint."""
        return [member.server_address for member in self._members]

    def sleep(self) -> None:
        """Release GPU memory for the trainer, unless the replicas have their own devices."""
        if self._rollout.free_cache_engine and not self.apart:
            wait_for(_all(member.sleep() for member in self._members))

    def sync(self, version: int) -> None:
        """Serve the training workers' weights as `version`, and clear caches of older weights."""
        if self._sync is None:
            raise EngineError(f"The replicas of {self.model!r} are frozen")
        self._sync.update_weights(version)
        wait_for(_all(member.clear_kv_cache() for member in self._members))

    def state(self, index: int) -> State:
        """Return whether the replica's process is alive, dead, or does not answer."""
        import ray  # noqa: PLC0415
        from ray.exceptions import GetTimeoutError, RayActorError  # noqa: PLC0415

        server = self._members[index].servers[0]
        try:
            ray.get(server.get_server_address.remote(), timeout=_PING_S)
        except RayActorError:
            return "dead"
        except GetTimeoutError:
            return "silent"
        return "alive"

    def replace(self, index: int, version: int) -> str:
        """Restart a dead replica and load the weights of `version` into it.

        Raises:
            EngineError: verl cannot restart replicas of this kind.
        """
        self._restart(index)
        if self._sync is not None:
            self.sync(version)
        return str(self._members[index].server_address)

    def repair(self) -> None:
        """Restart every dead replica; `sync` must load weights into it.

        Raises:
            EngineError: a replica is dead, and verl cannot restart replicas of this kind.
        """
        for index in range(len(self._members)):
            if self.state(index) == "dead":
                self._restart(index)

    def _restart(self, index: int) -> None:
        member = self._members[index]
        if self._rollout.name != ROLLOUT:
            raise EngineError(
                f"the process behind {member.server_address} died, and verl cannot restart a "
                f"{self._rollout.name!r} replica: start the run again with train.resume = true"
            )
        wait_for(member.launch_servers())
        self.replaced[index] += 1

    def _await_free(self, member: Any) -> None:
        """Wait until the memory of a stopped engine is free on its devices.

        Raises:
            EngineError: a process still uses the memory; the message names it.
        """
        import ray  # noqa: PLC0415

        share = float(self._rollout.gpu_memory_utilization)
        ray.get([each.__ray_call__.remote(await_free_of, share) for each in member.workers])

    def close(self) -> None:
        """Stop ``agl_cpu`` servers; verl's own servers end with their processes."""
        import ray  # noqa: PLC0415
        from ray.exceptions import RayError  # noqa: PLC0415

        if self._rollout.name != ROLLOUT:
            return
        for member in self._members:
            for server in member.servers:
                with contextlib.suppress(RayError):  # it may be dead already
                    ray.get(server.stop.remote(), timeout=_PING_S)

    def restart(self, model: str) -> None:
        """Restart the replicas with the weights in the directory `model`."""
        self.close()
        self.model = model
        for member in self._members:
            member.model_config.path = model
            if self._rollout.name != ROLLOUT:
                _end(member.servers)
                member.servers = []  # verl appends to the list
                self._await_free(member)
            wait_for(member.launch_servers())


def _replica(config: Any, *, rank: int, model: str | None = None) -> Any:
    root, nodes = config.actor_rollout_ref, config.trainer
    if model is None and has_own_devices(config):
        nodes = root.rollout
    settings = root.model.copy()
    if model is not None:
        settings.path = model
    made = _compat.RolloutReplicaRegistry.get(root.rollout.name)
    return made(
        replica_rank=rank,
        config=root.rollout,
        model_config=settings,
        gpus_per_node=int(nodes.n_gpus_per_node),
    )


def _manager(config: Any, workers: Any, members: list[Any]) -> Any:
    settings = _compat.omega_conf_to_dataclass(config.actor_rollout_ref.rollout.checkpoint_engine)
    return _compat.CheckpointEngineManager(config=settings, actor_wg=workers, replicas=members)


async def _all(work: Any) -> None:
    await asyncio.gather(*work)


def _end(servers: Sequence[Any]) -> None:
    """Kill actors and wait until Ray has released their names."""
    import ray  # noqa: PLC0415
    from ray.exceptions import RayActorError  # noqa: PLC0415

    for server in servers:
        ray.kill(server)
    for server in servers:
        with contextlib.suppress(RayActorError):
            ray.get(server.__ray_ready__.remote())

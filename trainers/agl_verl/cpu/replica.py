"""A replica of the rollout ``agl_cpu``: one server process."""

from __future__ import annotations

from typing import Any, Final

import ray

from agl_verl import _compat
from agl_verl.cpu import ROLLOUT
from agl_verl.cpu.server import CpuServer, actor_name

_CONCURRENCY: Final = 1000
"""Calls that an actor has under way at a time."""


class CpuReplica(_compat.RolloutReplica):
    """Serves a policy on the trainer's machine, in a process of its own."""

    async def init_colocated(self, resource_pool: Any) -> None:
        """Serve beside the training workers; nothing but the server is needed for that."""
        self.resource_pool = resource_pool
        await self.launch_servers()

    async def launch_servers(self) -> None:
        """Start the server; again replaces one that died."""
        kwargs = self.config.engine_kwargs.get(ROLLOUT) or {}
        actor: Any = ray.remote(CpuServer)
        actor = actor.options(
            name=actor_name(self.replica_rank), num_cpus=0, max_concurrency=_CONCURRENCY
        )
        server = actor.remote(str(self.model_config.path), {"device": "cpu", **dict(kwargs)})
        self._server_address = await server.start.remote()
        self.servers, self._server_handle = [server], server

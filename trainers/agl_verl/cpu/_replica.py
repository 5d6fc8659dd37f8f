"""A replica of the rollout ``agl_cpu``: one server process."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import ray

from agl_core.errors import EngineError
from agl_verl import _compat
from agl_verl.cpu import ROLLOUT
from agl_verl.cpu._server import CpuServer, actor_name

_FORGET_S: Final = 60.0
_POLL_S: Final = 0.1
_CONCURRENCY: Final = 1000
"""Maximum number of concurrent calls of an actor."""


class CpuReplica(_compat.RolloutReplica):
    """Serves a policy on the trainer's machine, in a separate process."""

    async def init_colocated(self, resource_pool: Any) -> None:
        """Start the server on the trainer's machine."""
        self.resource_pool = resource_pool
        await self.launch_servers()

    async def launch_servers(self) -> None:
        """Start the server, or restart it: kill the previous one first.

        Raises:
            EngineError: Ray does not release the killed server's name.
        """
        name = actor_name(self.replica_rank)
        if self.servers:
            ray.kill(self.servers[0])
            await _forgotten(name)
        kwargs = self.config.engine_kwargs.get(ROLLOUT) or {}
        actor: Any = ray.remote(CpuServer)
        actor = actor.options(name=name, num_cpus=0, max_concurrency=_CONCURRENCY)
        server = actor.remote(str(self.model_config.path), {"device": "cpu", **dict(kwargs)})
        self._server_address = await server.start.remote()
        self.servers, self._server_handle = [server], server


async def _forgotten(name: str) -> None:
    """Wait until Ray has released the actor's name; polls, as Ray has no event for it."""
    ends_at = time.monotonic() + _FORGET_S
    while time.monotonic() < ends_at:
        try:
            ray.get_actor(name)
        except ValueError:
            return
        await asyncio.sleep(_POLL_S)
    raise EngineError(f"Ray still lists the actor {name!r} {_FORGET_S:.0f} s after it was killed")

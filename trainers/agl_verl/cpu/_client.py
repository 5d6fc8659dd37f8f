"""The trainer's side of the rollout ``agl_cpu``: sends new weights to the server."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from typing import Any

import ray
from safetensors.torch import save_file

from agl_verl import _compat
from agl_verl.cpu._server import WEIGHTS, actor_name, handover


class CpuRollout(_compat.BaseRollout):
    """Client in every training worker; rank 0 of a replica's workers sends the weights."""

    def __init__(
        self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        rank, size = int(os.environ.get("RANK", "0")), self.config.tensor_model_parallel_size
        self.replica_rank = rank // size if replica_rank < 0 else replica_rank
        self.is_leader_rank = rank % size == 0
        self.sleep_level = 1

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self, weights: Any, wire_format: str = "named_tensors", **kwargs: Any
    ) -> None:
        """Send `weights` to the server as version ``global_steps``.

        The weights are passed through a local directory, as this rollout is for one machine.
        """
        if wire_format != "named_tensors":
            raise ValueError(f"The rollout 'agl_cpu' takes whole tensors, not {wire_format!r}")
        tensors = {name: tensor.detach().clone() async for name, tensor in _all(weights)}
        if not self.is_leader_rank:
            return
        directory = handover(self.replica_rank)
        shutil.rmtree(directory, ignore_errors=True)  # left by a worker that died during a transfer
        directory.mkdir(mode=0o700)
        try:
            save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
            server: Any = ray.get_actor(actor_name(self.replica_rank))
            await server.load.remote(str(directory), kwargs.get("global_steps") or 0)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


async def _all(weights: Any) -> AsyncIterator[tuple[str, Any]]:
    if hasattr(weights, "__aiter__"):
        async for pair in weights:
            yield pair
    else:
        for pair in weights:
            yield pair

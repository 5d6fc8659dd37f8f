"""Checkpoint engine ``agl_gloo`` for verl: sends weights to replicas with their own CPUs."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Generator, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias

import ray.util
import torch
from torch import distributed

from agl_verl import _compat
from agl_verl.cpu import TRANSFER

_TIMEOUT: Final = timedelta(minutes=10)
Meta: TypeAlias = "tuple[str, tuple[int, ...], torch.dtype] | None"
"""Name, shape and dtype of a tensor; None after the last one."""


@_compat.CheckpointEngineRegistry.register(TRANSFER)
class GlooTransfer(_compat.CheckpointEngine):
    """Rank 0 of the trainer broadcasts the tensors one by one to all workers of replicas.

    The trainer's other ranks only participate in gathering the tensors.
    """

    def __init__(self, bucket_size: int, *, is_master: bool = False) -> None:
        del bucket_size  # not used: tensors are sent without buckets
        self._is_master = is_master
        self._store: Any = None
        self._group: Any = None

    def prepare(self) -> tuple[str, int] | None:
        """Start the store on rank 0 and return its host and port; return None on other ranks."""
        if not self._is_master:
            return None
        host = ray.util.get_node_ip_address()
        self._store = _compat.create_tcp_store(
            host, 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT
        )
        return host, self._store.port

    @classmethod
    def build_topology(
        cls,
        actor_wg_world_size: int,
        rollout_world_size: int,
        metadata: Sequence[tuple[str, int] | None],
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Return the arguments of `init_process_group` for trainer and replica workers.

        The group consists of the trainer's rank 0 and all workers of replicas.
        """
        size, (host, port) = rollout_world_size + 1, metadata[0] or ("", 0)
        trainers = [0, *[-1] * (actor_wg_world_size - 1)]
        replicas = list(range(1, size))

        def dealt(ranks: list[int]) -> dict[str, list[Any]]:
            each = len(ranks)
            return {
                "rank": ranks,
                "size": [size] * each,
                "host": [host] * each,
                "port": [port] * each,
            }

        return dealt(trainers), dealt(replicas)

    def init_process_group(self, rank: int, size: int, host: str, port: int) -> None:
        """Join the process group of one transfer; a negative rank does not join."""
        if rank < 0:
            return
        if self._store is None:
            self._store = _compat.create_tcp_store(host, port, is_master=False, timeout=_TIMEOUT)
        self._group = distributed.ProcessGroupGloo(self._store, rank, size, _TIMEOUT)

    def finalize(self) -> None:
        """Leave the process group."""
        self._group = self._store = None

    async def send_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        global_steps: int | None = None,
    ) -> None:
        """Broadcast `weights`; ranks outside the group iterate too, as this gathers the tensors."""
        del global_steps
        number = 0
        for name, tensor in weights:
            if self._group is not None:
                whole = tensor.detach().cpu().contiguous()
                self._send(number, (name, tuple(whole.shape), whole.dtype))
                await asyncio.to_thread(self._broadcast, whole)
                number += 1
        if self._group is not None:
            self._send(number, None)

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        """Yield name and tensor as they arrive."""
        del global_steps
        number = 0
        while (meta := await asyncio.to_thread(self._receive, number)) is not None:
            name, shape, dtype = meta
            tensor = torch.empty(shape, dtype=dtype)
            await asyncio.to_thread(self._broadcast, tensor)
            yield name, tensor
            number += 1

    def _send(self, number: int, meta: Meta) -> None:
        self._store.set(f"tensor/{number}", pickle.dumps(meta))

    def _receive(self, number: int) -> Meta:
        return pickle.loads(self._store.get(f"tensor/{number}"))  # noqa: S301 (from our trainer)

    def _broadcast(self, tensor: torch.Tensor) -> None:
        options = distributed.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([tensor], options).wait()

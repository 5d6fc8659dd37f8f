"""Waiting until a replaced engine has released its GPU memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final

from agl_core.errors import EngineError

_WAIT_S: Final = 120.0
_POLL_S: Final = 0.5
_MIB: Final = 1 << 20
_QUERY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as nvidia-smi reports it."""

    names: tuple[str, str]
    """Index and UUID."""
    total: int
    free: int
    holders: tuple[str, ...]
    """Its processes and their memory, as text."""


def gpus() -> list[Gpu]:
    """Return the GPUs of this machine; empty without nvidia-smi."""
    devices = _ask("index,uuid,memory.total,memory.free", of="gpu")
    processes = _ask("gpu_uuid,pid,used_memory,process_name", of="compute-apps")
    return [
        Gpu(
            names=(index, uuid),
            total=int(total) * _MIB,
            free=int(free) * _MIB,
            holders=tuple(
                f"process {pid} ({name}) with {used} MiB"
                for gpu, pid, used, name in processes
                if gpu == uuid
            ),
        )
        for index, uuid, total, free in devices
        if total.isdecimal() and free.isdecimal()  # excludes GPUs that share the host's memory
    ]


def _ask(fields: str, *, of: str) -> list[list[str]]:
    """Return the rows of a query; the last field may contain commas."""
    try:
        done = subprocess.run(  # noqa: S603
            ["nvidia-smi", f"--query-{of}={fields}", "--format=csv,noheader,nounits"],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=_QUERY_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    commas = fields.count(",")
    lines = [line.split(",", commas) for line in done.stdout.splitlines()]
    return [[cell.strip() for cell in cells] for cells in lines if len(cells) == commas + 1]


def await_free(devices: Sequence[str], share: float, wait_s: float = _WAIT_S) -> None:
    """Wait until each GPU in `devices` (index or UUID) has the fraction `share` of its memory free.

    Raises:
        EngineError: it has not after `wait_s`; the message names the processes.
    """
    ends_at = monotonic() + wait_s
    while True:
        full = [
            gpu
            for gpu in gpus()
            if any(name in devices for name in gpu.names) and gpu.free < int(share * gpu.total)
        ]
        if not full:
            return
        if monotonic() >= ends_at:
            raise EngineError(_refusal(full, share, wait_s))
        sleep(_POLL_S)


def _refusal(full: Sequence[Gpu], share: float, wait_s: float) -> str:
    listed = "; ".join(
        f"GPU {gpu.names[0]} has {gpu.free / 1e9:.1f} of {gpu.total / 1e9:.1f} GB free, held by "
        f"{', '.join(gpu.holders) or 'a process that nvidia-smi does not name'}"
        for gpu in full
    )
    return (
        f"A replica cannot be started: it needs {share:g} of its GPU "
        f"(rollout.gpu_memory_utilization), and {wait_s:.0f} s after the old engine was ended "
        f"{listed}. End that process, or lower rollout.gpu_memory_utilization"
    )


def await_free_of(worker: Any, share: float) -> None:
    """Call `await_free` for a worker's devices; runs in the worker's process."""
    del worker
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    await_free([name for name in visible.split(",") if name], share)

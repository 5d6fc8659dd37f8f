"""verl's platform ``cpu``: no device memory, no streams, gloo as communication backend."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psutil
import torch

from agl_verl import _compat
from agl_verl.cpu import PLATFORM


class _CpuModule(SimpleNamespace):
    """``torch.cpu`` with additional functions of ``torch.cuda``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


def _memory(*_: Any) -> tuple[int, int]:
    """Return free and total bytes of the machine's memory."""
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _zero(*_: Any) -> int:
    return 0


def _name(*_: Any) -> str:
    return "cpu"


def _properties(*_: Any) -> SimpleNamespace:
    return SimpleNamespace(total_memory=_memory()[1])


_MODULE = _CpuModule(
    current_device=lambda: "cpu",
    device_count=lambda: 1,
    empty_cache=_nothing,
    get_device_name=_name,
    get_device_properties=_properties,
    get_rng_state=torch.get_rng_state,
    ipc_collect=_nothing,
    is_available=lambda: True,
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
    max_memory_allocated=_zero,
    max_memory_reserved=_zero,
    mem_get_info=_memory,
    memory_allocated=_zero,
    memory_reserved=_zero,
    reset_peak_memory_stats=_nothing,
    set_device=_nothing,
    set_rng_state=torch.set_rng_state,
    synchronize=_nothing,
)


class CpuPlatform(_compat.PlatformBase):
    """The CPU as a platform of verl; each worker process uses one Ray resource ``GPU``."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> Any:
        return _MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:  # noqa: ARG002
        return os.environ.get("VERL_PLATFORM") == PLATFORM

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:  # noqa: ARG002
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Generator[None]:  # noqa: ARG002
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None

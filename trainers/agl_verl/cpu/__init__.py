"""verl on a CPU, through verl's own plug points; installs nothing and edits no file of verl's.

`plugin` is what verl loads (``VERL_USE_EXTERNAL_MODULES``). What it touches:

- `PlatformRegistry.register`: the platform ``cpu``.
- `RolloutReplicaRegistry.register`: the rollout ``agl_cpu``, which serves with agl-core's engine
  ``torch``.
- `CheckpointEngineRegistry.register`: the checkpoint engine ``agl_gloo`` (`weights`, which verl loads
  as ``checkpoint_engine.custom_backend_module``), for replicas on devices of their own.
- ``_ROLLOUT_REGISTRY`` of ``verl.workers.rollout.base``: the same rollout's client inside the
  trainer's process. verl has no function for it.

The process group is gloo's because `agl_verl.worker.Actor` opens it before verl would, and the FSDP
engine, which verl registers for accelerators alone, is found by ``VERL_ENGINE_DEVICE``, which verl
reads for this purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

PLATFORM: Final = "cpu"
ROLLOUT: Final = "agl_cpu"
TRANSFER: Final = "agl_gloo"

ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "VERL_PLATFORM": PLATFORM,
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_USE_EXTERNAL_MODULES": "agl_verl.cpu.plugin",
    }
)
"""Of every process that imports verl."""

"""verl on a CPU, through verl's extension points and without changing verl's files.

verl loads `_plugin` (``VERL_USE_EXTERNAL_MODULES``). Together with `weights` it registers:

- `PlatformRegistry.register`: the platform ``cpu``.
- `RolloutReplicaRegistry.register`: the rollout ``agl_cpu``, which serves with agl-core's engine
  ``torch``.
- `CheckpointEngineRegistry.register`: the checkpoint engine ``agl_gloo`` (`weights`, which verl
  loads as ``checkpoint_engine.custom_backend_module``), for replicas with their own devices.
- ``_ROLLOUT_REGISTRY`` of ``verl.workers.rollout.base``: the rollout's client in the trainer's
  process. verl has no public function for this.

The process group uses gloo because `agl_verl._worker.Actor` creates it before verl does. verl
registers the FSDP engine only for accelerators; ``VERL_ENGINE_DEVICE`` makes verl use it on a CPU.
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
        "VERL_USE_EXTERNAL_MODULES": "agl_verl.cpu._plugin",
    }
)
"""Environment variables of every process that imports verl."""

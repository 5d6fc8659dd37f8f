"""Registers CPU support with verl when verl imports this module."""

from __future__ import annotations

from typing import Any

from agl_verl import _compat
from agl_verl.cpu import PLATFORM, ROLLOUT


def _replica() -> Any:
    from agl_verl.cpu._replica import CpuReplica  # noqa: PLC0415

    return CpuReplica


def register() -> None:
    """Register the platform and the rollout with verl; idempotent."""
    from agl_verl.cpu._platform import CpuPlatform  # noqa: PLC0415

    _compat.PlatformRegistry.register(platform=PLATFORM)(CpuPlatform)
    _compat.RolloutReplicaRegistry.register(ROLLOUT, _replica)
    _compat.rollout_classes[ROLLOUT, "async"] = "agl_verl.cpu._client.CpuRollout"


register()

"""Check of ``agl doctor``: whether the run fits into the device's memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from agl_core.app import engine_name, load_plugins, with_weights
from agl_core.config import algorithm_phases, check_options, resolve_policies
from agl_core.types import Finding
from agl_torch._memory import REMEDY, itemized, policy_needs, total_memory, usable

if TYPE_CHECKING:
    from agl_core.config import RunConfig
    from agl_core.interfaces import AttemptRecord

_ENGINE: Final = "torch"


def check(records: Sequence[AttemptRecord], config: RunConfig) -> Iterable[Finding]:
    """Report the memory estimate that `check_memory` uses; nothing for other engines."""
    del records
    plugins = load_plugins(config.plugins)
    if engine_name(config, plugins) != _ENGINE:
        return
    from agl_torch.engine import device_of, dtype_of  # noqa: PLC0415

    registry = plugins.registry("engines")
    options: Any = check_options(config.engine, registry.options_model(_ENGINE), where="engine")
    device = device_of(options.device)
    phases = algorithm_phases(config).values()
    policies = [each for each in resolve_policies(config, training=True) if not each.base_url]
    parts = policy_needs(
        with_weights(policies, plugins),
        options,
        trains=bool(phases),
        dtype=dtype_of(options.dtype, device),
        reference=any(phase.algorithm.kl_weight > 0 for phase in phases),
    )
    needed, total = sum(parts.values()), total_memory(device)
    yield Finding.of(
        "torch.memory",
        "ok" if needed <= usable(total) else "error",
        f"The run needs {itemized(parts)} of {total / 1e9:.2f} GB, keys and values of answers not included.",
        fix=f"{REMEDY[0].upper()}{REMEDY[1:]}.",
        figures={"parts": parts, "total": total},
    )

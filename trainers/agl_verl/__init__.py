"""The ``verl`` engine: trains on a Ray cluster with verl."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_verl.facade import VerlTrainer

__all__ = ["VerlTrainer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agl_verl.facade import VerlTrainer  # noqa: PLC0415

    return VerlTrainer

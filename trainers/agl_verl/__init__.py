"""The ``verl`` engine: trains on a Ray cluster with verl."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_verl._facade import VerlTrainer as VerlTrainer
else:
    __getattr__, __dir__, __all__ = late(__name__)

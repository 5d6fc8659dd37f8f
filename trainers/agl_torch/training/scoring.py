"""Log-probabilities of sampled tokens under a model's current weights."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from agl_torch._forward import CausalModel, Entropies
from agl_torch.training.batch import TensorBatch
from agl_torch.training.packing import Pack


class LogprobScorer:
    """Computes log-probabilities of a pack's terms under one model's weights."""

    def __init__(self, model: CausalModel, *, autocast: torch.dtype | None) -> None:
        """Create a scorer.

        Args:
            model: The model to score with.
            autocast: Dtype of the forward pass; None for that of the weights.
        """
        self._model = model
        self._autocast = autocast

    def logprobs(
        self,
        pack: Pack,
        batch: TensorBatch,
        *,
        recompute: bool = False,
        entropies: Entropies | None = None,
    ) -> Tensor:
        """Return the log-probability (S,) of each term's target at its sampling temperature.

        Args:
            recompute: Use gradient checkpointing.
            entropies: Gets the entropies of the same distributions.
        """
        with self._precision():
            return self._model.logprobs(
                pack.rows,
                select=pack.select,
                targets=batch.targets[pack.terms],
                temperatures=batch.temperatures[pack.terms],
                recompute=recompute,
                entropies=entropies,
            )

    def _precision(self) -> AbstractContextManager[object]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._model.device.type, self._autocast)

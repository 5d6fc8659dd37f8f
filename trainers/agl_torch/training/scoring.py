"""Log-probabilities of sampled tokens under given weights."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from agl_torch.forward import CausalModel
from agl_torch.training.batch import TensorBatch
from agl_torch.training.packing import Pack


class Scorer:
    """Scores the terms of a pack under one model's weights."""

    def __init__(self, model: CausalModel, *, autocast: torch.dtype | None) -> None:
        """Score with `model`.

        Args:
            autocast: Arithmetic of the forward pass, where it is not that of the weights.
        """
        self._model = model
        self._autocast = autocast

    def logprobs(self, pack: Pack, batch: TensorBatch, *, recompute: bool = False) -> Tensor:
        """Log-probability (S,) of each term's target, at the temperature it was sampled at.

        Args:
            recompute: For the gradient, keep the input of each layer and compute the rest again.
        """
        with self._precision():
            return self._model.logprobs(
                pack.rows,
                select=pack.select,
                targets=batch.targets[pack.terms],
                temperatures=batch.temperatures[pack.terms],
                recompute=recompute,
            )

    def _precision(self) -> AbstractContextManager[object]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._model.device.type, self._autocast)

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

    def logprobs(self, pack: Pack, batch: TensorBatch) -> Tensor:
        """Log-probability (S,) of each term's target, at the temperature it was sampled at."""
        with self._precision():
            logits = self._model.logits(pack.rows, select=pack.select)  # (S, V)
        scaled = logits / batch.temperatures[pack.terms, None]
        targets = batch.targets[pack.terms, None]
        return scaled.gather(1, targets)[:, 0] - scaled.logsumexp(-1)

    def _precision(self) -> AbstractContextManager[object]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._model.device.type, self._autocast)

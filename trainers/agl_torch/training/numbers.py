"""Numbers of each loss term of an update, for people who look at tokens."""

from __future__ import annotations

from array import array

import torch
from torch import Tensor

from agl_core.types import TokenNumbers
from agl_torch._forward import Entropies
from agl_torch.training.batch import TensorBatch


class TermNumbers:
    """Entropies and log-probabilities of the terms of a batch; NaN where not computed.

    The values before the update come from the passes that train, as long as the weights have not
    changed: with several minibatches, only the terms of the first one and those that are measured
    apart have any.
    """

    def __init__(self, batch: TensorBatch) -> None:
        self._entropies, self._before, self.after = (
            torch.full_like(batch.weights, torch.nan) for _ in range(3)
        )
        """Each (M,)."""

    def add(self, terms: Tensor, logprobs: Tensor, entropies: Entropies | None) -> None:
        """Keep what a pass with the old weights computed; nothing without `entropies`."""
        if entropies is not None:
            self._before[terms] = logprobs
            self._entropies[terms] = entropies.result()

    def result(self) -> TokenNumbers:
        """Return the numbers on the CPU."""
        return TokenNumbers(
            entropies=_packed(self._entropies),
            before=_packed(self._before),
            after=_packed(self.after),
        )


def _packed(values: Tensor) -> array[float]:
    found = array("d")
    found.frombytes(values.double().cpu().numpy().tobytes())
    return found

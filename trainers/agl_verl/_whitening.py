"""Whitening of a batch's advantages (mean 0, standard deviation 1), as in verl."""

from __future__ import annotations

import dataclasses
from array import array

from agl_core.types import Batch


def whitened(batch: Batch) -> Batch:
    """Return the batch with the advantages of its trained tokens whitened; tokens count equally.

    ::

        A'[j] = (A[j] - mean(A)) / sqrt(var(A) + 1e-8)        var over n - 1

    over the loss terms with a positive weight, in double precision; other terms are unchanged. This
    is verl's ``masked_whiten``, except that equal advantages give exactly 0.
    """
    import numpy as np  # noqa: PLC0415

    trained = np.asarray(batch.weights) > 0
    advantages = np.asarray(batch.advantages, dtype=np.float64)
    chosen = advantages[trained]
    if not chosen.size:
        return batch
    if chosen.min() == chosen.max():
        advantages[trained] = 0.0
    else:
        advantages[trained] = (chosen - chosen.mean()) / np.sqrt(chosen.var(ddof=1) + 1e-8)
    return dataclasses.replace(batch, advantages=array("f", advantages.tolist()))

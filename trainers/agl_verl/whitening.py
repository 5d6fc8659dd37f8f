"""Advantages of a whole batch brought to mean 0 and spread 1, as verl's ``masked_whiten`` does."""

from __future__ import annotations

import dataclasses
from array import array

from agl_core.types import Batch


def whitened(batch: Batch) -> Batch:
    """The batch with its trained tokens' advantages whitened, every token counting the same.

    ::

        A'[j] = (A[j] - mean(A)) / sqrt(var(A) + 1e-8)        var over n - 1

    over the loss terms with a weight above 0, in double precision; others keep theirs. Where all
    of them are equal they are exactly 0, whatever rounding would leave of them.
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

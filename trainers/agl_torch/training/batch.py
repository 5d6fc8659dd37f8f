"""A batch's arrays as validated tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agl_core.errors import TrainingError
from agl_core.training import group_minibatches
from agl_core.types import Batch
from agl_torch.training.packing import Layout
from agl_torch.training.tree import Forest, IntArray


@dataclass(frozen=True, slots=True)
class TensorBatch:
    """The batch as the trainer uses it; tensors are (M,) on the training device."""

    forest: Forest
    layout: Layout
    groups: IntArray
    """(M,) group of each term."""
    targets: Tensor
    advantages: Tensor
    weights: Tensor
    behaviour: Tensor
    temperatures: Tensor
    """1 for greedily sampled terms: their log-probabilities are recorded at temperature 1."""
    calls: Tensor

    @classmethod
    def of(cls, batch: Batch, *, device: torch.device) -> TensorBatch:
        """Copy a batch to `device`.

        Raises:
            TrainingError: the batch has no loss terms, has images, or has numbers that are not
                finite.
        """
        if batch.images:
            raise TrainingError(
                f"Batch {batch.step} of policy {batch.policy!r} shows {len(batch.images)} images, "
                f"but engine 'torch' trains on text: use engine.name = 'verl'"
            )
        if not batch.nodes:
            raise TrainingError(f"Batch {batch.step} of policy {batch.policy!r} has no loss terms")
        for name in ("advantages", "weights", "logprobs", "temperatures"):
            values = np.asarray(getattr(batch, name), dtype=np.float32)
            if not np.isfinite(values).all():
                call = batch.call_ids[batch.calls[int(np.flatnonzero(~np.isfinite(values))[0])]]
                raise TrainingError(
                    f"Batch {batch.step} of policy {batch.policy!r}: {name} of call {call!r} are "
                    f"not finite; the reward or the recorded log-probabilities are broken"
                )
        nodes, calls = _ints(batch.nodes), _ints(batch.calls)
        temperatures = np.asarray(batch.temperatures, dtype=np.float32)
        return cls(
            forest=Forest(_ints(batch.parents), nodes, calls),
            layout=Layout(_ints(batch.tokens), _ints(batch.positions), nodes),
            groups=_ints(batch.groups)[calls],
            targets=torch.from_numpy(_ints(batch.targets)).to(device),
            advantages=_reals(batch.advantages, device),
            weights=_reals(batch.weights, device),
            behaviour=_reals(batch.logprobs, device),
            temperatures=torch.from_numpy(np.where(temperatures > 0, temperatures, 1)).to(device),
            calls=torch.from_numpy(calls).to(device),
        )

    def weight(self, terms: IntArray) -> float:
        """Return the sum of the weights of `terms`."""
        return float(self.weights[torch.from_numpy(terms).to(self.weights.device)].sum())

    def minibatches(self, count: int, *, order: str) -> list[IntArray]:
        """Return the terms of each minibatch; `group_minibatches` distributes the groups."""
        parts = group_minibatches(self.groups.tolist(), count, order=order)
        return [np.flatnonzero(np.isin(self.groups, part)) for part in parts]

    def strongest(self, share: float) -> IntArray:
        """Return the terms of a share of the groups, at least of one.

        They are the groups with the greatest sum of absolute advantages, each with its weight.
        """
        strength = (self.advantages * self.weights).abs().cpu().numpy()
        sums = np.bincount(self.groups, weights=strength)
        known = np.unique(self.groups)
        count = max(1, round(share * len(known)))
        chosen = sorted(known.tolist(), key=lambda group: (-sums[group], group))[:count]
        return np.flatnonzero(np.isin(self.groups, chosen))


def _ints(values: object) -> IntArray:
    return np.asarray(values, dtype=np.int64)


def _reals(values: object, device: torch.device) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float32)).to(device)

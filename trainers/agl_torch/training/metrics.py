"""Weighted means and maxima over all terms of an update."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class Metrics:
    """Accumulates per-token metrics pack by pack."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._maxima: dict[str, float] = {}

    def mean(self, values: Mapping[str, Tensor], weights: Tensor) -> None:
        """Add values per token to the weighted means."""
        total = float(weights.sum())
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + float((value * weights).sum())
            self._weights[name] = self._weights.get(name, 0.0) + total

    def largest(self, values: Mapping[str, Tensor], weights: Tensor) -> None:
        """Update the maxima with the values of tokens whose weight is positive."""
        trained = weights > 0
        if not bool(trained.any()):
            return
        for name, value in values.items():
            found = float(value[trained].max())
            self._maxima[name] = max(self._maxima.get(name, found), found)

    def result(self) -> dict[str, float]:
        """Return all metrics; a mean with zero total weight is omitted."""
        means = {
            name: total / self._weights[name]
            for name, total in self._sums.items()
            if self._weights[name] > 0
        }
        return {**means, **self._maxima}

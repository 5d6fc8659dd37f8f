"""The algorithm ``rank``: advantages from the order of a group's returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agl_core import TrainingError
from agl_core.training.advantages import Weighting, broadcast, over_trained
from agl_core.types import CallCredit, TrajectoryGroup


class RankOptions(BaseModel):
    """Options of `Rank`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    clip: float = Field(default=0.2, ge=0, lt=1)
    """The ratio of new to old probability is clipped this far below and above 1."""
    weighting: Weighting = "token"
    """How tokens share the loss: each token, each call or each attempt alike."""


class Rank:
    """Ranks as advantages, and the clipped policy gradient."""

    loss = "policy_gradient"

    def __init__(self, options: RankOptions) -> None:
        self._options = options

    @property
    def loss_options(self) -> Mapping[str, Any]:
        return {"clip_low": self._options.clip, "clip_high": self._options.clip, "ratio": "token"}

    def credit(self, group: TrajectoryGroup) -> list[CallCredit]:
        """See `agl_core.interfaces.Algorithm.credit`."""
        advantages = over_trained(group, _advantages)
        return broadcast(group, advantages, weighting=self._options.weighting)


def _advantages(group: TrajectoryGroup) -> list[float]:
    return rank_advantages([returned.value for returned in group.returns])


def rank_advantages(returns: Sequence[float]) -> list[float]:
    """Return one advantage per attempt: the share of siblings it beats less the share that beat it.

    ::

        A_i = (|{j: R_j < R_i}| - |{j: R_j > R_i}|) / (n - 1)

    It lies between -1 and 1 whatever the scale of the rewards. A group of one has advantage 0.

    Raises:
        TrainingError: the group is empty.
    """
    if not returns:
        raise TrainingError("A group without attempts has no ranks: drop it")
    siblings = max(len(returns) - 1, 1)
    return [
        (sum(other < value for other in returns) - sum(other > value for other in returns))
        / siblings
        for value in returns
    ]

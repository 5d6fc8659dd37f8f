"""Options of the optimiser ``gepa``."""

from __future__ import annotations

from typing import Literal, Self

from agl_prompts import StudyOptions
from pydantic import Field, model_validator


class GepaOptions(StudyOptions):
    """Options of the optimiser ``gepa``; the defaults are gepa's own."""

    minibatch: int = Field(default=3, gt=0)
    """Number of training tasks on which a parent and its child are compared."""
    parents: Literal["pareto", "top_k_pareto", "current_best", "epsilon_greedy"] = "pareto"
    """How a parent is chosen: ``pareto`` among the candidates that are best on at least one
    validation task, more often if on several; ``top_k_pareto`` the same among the best five;
    ``current_best`` the best; ``epsilon_greedy`` the best, or any with probability 0.1."""
    update: Literal["round_robin", "all"] = "round_robin"
    """Which prompts a child changes: one in turn, or all."""
    proposals: int = Field(default=1, gt=0)
    """Number of children per iteration, each with its own parent and minibatch; their rollouts run
    concurrently."""
    acceptance: Literal["strict_improvement", "improvement_or_equal"] = "strict_improvement"
    """When a child is kept and evaluated on the validation tasks: its sum of scores on the
    minibatch is greater than its parent's, or also if it is equal."""
    skip_perfect_score: bool = True
    """Propose no child on a minibatch on which all scores of the parent are perfect. The phase ends
    once that holds for all training tasks."""
    perfect_score: float = Field(default=1.0, allow_inf_nan=False)
    """Lowest score that is perfect."""
    merge: bool = False
    """After a child is kept, also combine the prompts of two candidates with a common ancestor."""
    merges: int = Field(default=5, gt=0)
    """Limit of combinations in a phase."""
    template: str = ""
    """Request to the editor, with ``<curr_param>`` for the prompt and ``<side_info>`` for the
    examples; gepa's own if empty."""
    example_chars: int = Field(default=4000, ge=200)
    """Limit of characters of one example for the editor; the middle of long parts is left out."""

    @model_validator(mode="after")
    def _with_marks(self) -> Self:
        lacking = [mark for mark in ("<curr_param>", "<side_info>") if mark not in self.template]
        if self.template and lacking:
            raise ValueError(
                f"template lacks {' and '.join(lacking)}, where gepa puts the prompt and examples"
            )
        return self

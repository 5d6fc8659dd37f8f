"""Options of the optimiser ``apo``."""

from __future__ import annotations

from agl_prompts import StudyOptions
from pydantic import Field


class ApoOptions(StudyOptions):
    """Options of the optimiser ``apo``."""

    gradient_batch: int = Field(default=4, ge=1)
    """Training tasks on which each branch runs its parent for the critic."""
    val_batch: int = Field(default=16, ge=1)
    """Validation tasks that decide which candidates stay in the beam; the same tasks in every
    round, and at most half of all. The others decide whether a candidate is better."""
    beam_width: int = Field(default=4, ge=1)
    """Candidates that stay for the next round."""
    branch_factor: int = Field(default=4, ge=1)
    """Children per place in the beam; candidates share the places while they are fewer."""
    rounds: int = Field(default=3, ge=1)
    """Rounds of proposing, checking and keeping candidates; a budget that is too small for full
    rounds is shared out to them."""
    confidence: float = Field(default=0.95, ge=0, lt=1)
    """Probability with which the incumbent is kept if no candidate is better; 0 takes the highest
    mean."""
    feedback_chars: int = Field(default=12_000, ge=200)
    """Characters of all attempts in one request to the critic; the middle of longer ones is left
    out."""
    critique_chars: int = Field(default=4_000, ge=100)
    """Characters of the critic's answer in a request to the editor."""
    edits_at_once: int = Field(default=4, ge=1)
    """Largest number of edits that run concurrently. An editor or critic that is a Python function
    is called once at a time, so that one with a state behaves equally in every run."""
    critique_templates: list[str] = Field(default_factory=list[str])
    """Files that replace the built-in requests to the critic, relative to the working directory.
    Each has the placeholders ``{prompt}`` and ``{attempts}``, and may have ``{what}``."""
    edit_templates: list[str] = Field(default_factory=list[str])
    """Files that replace the built-in requests to the editor, relative to the working directory.
    Each has the placeholders ``{prompt}``, ``{critique}`` and ``{rules}``, and may have
    ``{what}``."""

    @property
    def at_once(self) -> int:
        """Number of edits that run concurrently."""
        models = (self.editor, self.critic)
        return 1 if any(each and each.function for each in models) else self.edits_at_once

    def batch_of(self, tasks: int) -> int:
        """Return how many of a number of validation tasks choose candidates."""
        return min(self.val_batch, tasks // 2 if self.confidence else tasks)

    @property
    def level(self) -> float:
        """Largest p-value with which a validated candidate counts as better."""
        return (1 - self.confidence) / self.rounds if self.confidence else 1.0

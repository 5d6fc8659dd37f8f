"""Options of the optimiser ``bootstrap``."""

from __future__ import annotations

from typing import Self

from agl_prompts import StudyOptions
from pydantic import Field, model_validator

from agl_bootstrap._demos import Form


class BootstrapOptions(StudyOptions):
    """Options of the optimiser ``bootstrap``."""

    threshold: float = Field(allow_inf_nan=False)
    """Score from which an attempt's calls are demonstrations; with several samples, each reaches
    it. There is no default, because the range of a program's rewards is not known."""
    max_demos: int = Field(default=4, ge=0)
    """Largest number of demonstrations in one prompt; 0 adds none."""
    form: Form = "messages"
    """What a demonstration shows: ``messages``, the messages of the call with the answer, under
    headings; ``answer``, the answer alone, one after the other. A small model copies headings and
    questions of demonstrations; from answers alone it takes their form. Where the question decides
    what the answer is, such as in a classification, answers alone say nothing."""
    sets: int = Field(default=16, ge=1)
    """Largest number of sets of demonstrations that are compared on the validation tasks."""
    pool: int = Field(default=16, ge=1)
    """Training tasks run until each prompt has this many demonstrations to draw from."""
    demo_chars: int = Field(default=1_500, ge=1)
    """A longer demonstration is left out: cut in two it would show a wrong answer."""
    demos_chars: int = Field(default=6_000, ge=1)
    """Characters of all demonstrations of one prompt; `max_chars` limits the whole text."""
    confidence: float = Field(default=0.95, ge=0, lt=1)
    """Probability with which the incumbent is kept if no set is better; 0 takes the highest mean."""

    @property
    def level(self) -> float:
        """Largest p-value with which the best set counts as better than the incumbent."""
        return 1 - self.confidence if self.confidence else 1.0

    @model_validator(mode="after")
    def _no_editor(self) -> Self:
        if self.editor is not None or self.critic is not None:
            raise ValueError("bootstrap asks no editor model: remove editor and critic")
        return self

"""Errors of prompt optimisation.

::

    TrainingError
    └── PromptError
        ├── CandidateRefusedError   a candidate that must not run
        ├── EditorError             one call of an editor model failed
        └── StudyEndedError         the phase ends with the best candidate so far
            ├── BudgetSpentError        the rollouts that are left are too few
            ├── EditorsSpentError       the editors' calls or tokens are used up
            ├── EditorsFailedError      editors failed several times in a row
            ├── ProposalsRefusedError   too many candidates in a row were refused
            └── RolloutsLostError       the infrastructure failed in all rollouts
"""

from __future__ import annotations

from agl_core.errors import TrainingError
from agl_core.interfaces import Candidate


class PromptError(TrainingError):
    """Base of the errors of prompt optimisation."""


class CandidateRefusedError(PromptError):
    """A candidate that must not run; an optimiser catches it and tries another edit."""

    def __init__(self, cause: str, message: str) -> None:
        """Create the error.

        Args:
            cause: One of ``placeholders``, ``empty``, ``too_long``, ``same``, ``repeated``,
                ``unknown``.
            message: The prompt, what is wrong with it, and the values.
        """
        super().__init__(message)
        self.cause = cause


class EditorError(PromptError):
    """One call of an editor or critic failed; an optimiser may catch it and make another call."""

    def __init__(self, message: str, *, tokens: int = 0) -> None:
        """Create the error.

        Args:
            message: What failed, and what to do.
            tokens: Tokens that the call used nevertheless.
        """
        super().__init__(message)
        self.tokens = tokens


class StudyEndedError(PromptError):
    """The phase ends with the best candidate so far.

    An optimiser that does not choose by the highest mean sets `chosen` and raises it again.
    """

    chosen: Candidate | None = None
    """The phase's result; `Study.best` when None."""


class BudgetSpentError(StudyEndedError):
    """An evaluation needs more rollouts than are left; none of its rollouts ran."""


class EditorsSpentError(StudyEndedError):
    """The next call would exceed an editor's limit of calls or tokens."""


class EditorsFailedError(StudyEndedError):
    """Editors failed several times in a row."""


class ProposalsRefusedError(StudyEndedError):
    """Too many candidates in a row were refused."""


class RolloutsLostError(StudyEndedError):
    """Only infrastructure failures came back from the last rollouts."""

"""Prompt optimisation: what all optimisers share.

An optimiser derives from `PromptOptimizer` and gets a `Study`, which runs candidates within a budget
of rollouts, checks them, asks editor models, and keeps a journal from which a run resumes.

Reading order: `_optimizer` (the base class), `_study` (evaluations and proposals), `_guards`
(checks of a candidate), `_editors` (editor and critic models), `_journal`, `_seen` and `_texts`
(results, and their form for editors), `_paired` (comparisons), `_options`, `_errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_prompts._captured import RequestPrompts as RequestPrompts
    from agl_prompts._errors import BudgetSpentError as BudgetSpentError
    from agl_prompts._errors import CandidateRefusedError as CandidateRefusedError
    from agl_prompts._errors import EditorError as EditorError
    from agl_prompts._errors import EditorsFailedError as EditorsFailedError
    from agl_prompts._errors import EditorsSpentError as EditorsSpentError
    from agl_prompts._errors import PromptError as PromptError
    from agl_prompts._errors import ProposalsRefusedError as ProposalsRefusedError
    from agl_prompts._errors import RolloutsLostError as RolloutsLostError
    from agl_prompts._errors import StudyEndedError as StudyEndedError
    from agl_prompts._history import PromptHistory as PromptHistory
    from agl_prompts._history import history_of as history_of
    from agl_prompts._optimizer import ChecksPhase as ChecksPhase
    from agl_prompts._optimizer import PromptOptimizer as PromptOptimizer
    from agl_prompts._optimizer import tunes as tunes
    from agl_prompts._options import EditorOptions as EditorOptions
    from agl_prompts._options import Role as Role
    from agl_prompts._options import StudyOptions as StudyOptions
    from agl_prompts._paired import Difference as Difference
    from agl_prompts._paired import difference_of as difference_of
    from agl_prompts._paired import p_value as p_value
    from agl_prompts._paired import standings as standings
    from agl_prompts._seen import Seen as Seen
    from agl_prompts._seen import SeenCall as SeenCall
    from agl_prompts._sent import is_sent as is_sent
    from agl_prompts._study import Split as Split
    from agl_prompts._study import Study as Study
    from agl_prompts._texts import HEADS as HEADS
    from agl_prompts._texts import describe as describe
    from agl_prompts._texts import new_text as new_text
    from agl_prompts._texts import shortened as shortened
else:
    __getattr__, __dir__, __all__ = late(__name__)

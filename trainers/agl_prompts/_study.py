"""The study of one prompt phase: budget, guards, journal and editors around its rollouts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agl_core.interfaces import Candidate, PromptPhase, TunedPrompt
from agl_core.types import Estimate, Task
from agl_prompts._options import Role, StudyOptions
from agl_prompts._seen import Seen

Split = Literal["train", "val"]
Message = Mapping[str, Any]


class Study:
    """The view of a prompt phase that an optimiser gets."""

    def __init__(self, phase: PromptPhase, options: StudyOptions) -> None: ...

    @property
    def prompts(self) -> Mapping[str, TunedPrompt]:
        """The prompts to tune, with the incumbent's texts."""
        ...

    @property
    def train(self) -> Sequence[Task]: ...

    @property
    def val(self) -> Sequence[Task]: ...

    @property
    def seed(self) -> int: ...

    @property
    def options(self) -> StudyOptions: ...

    @property
    def left(self) -> int:
        """Number of rollouts left in the budget."""
        ...

    @property
    def incumbent(self) -> Candidate:
        """The texts with which the phase began."""
        ...

    @property
    def best(self) -> Candidate:
        """The candidate with the highest mean over all validation tasks; the first wins ties.

        Only candidates with a score for each validation task count (tasks that were lost aside);
        the incumbent if there is none. All evaluations of a candidate are averaged per task.
        """
        ...

    def scored(self, candidate: Candidate) -> Estimate | None:
        """Return a candidate's mean over the validation tasks; None before all of them ran."""
        ...

    def cost(self, tasks: int) -> int:
        """Return the number of rollouts that one candidate needs on a number of tasks."""
        ...

    def whole(self, candidate: Candidate) -> dict[str, str]:
        """Return the texts of all prompts; the incumbent's where the candidate has none."""
        ...

    def digest(self, candidate: Candidate) -> str:
        """Return a digest of a candidate's texts, without the space around each."""
        ...

    def knows(self, candidate: Candidate) -> bool:
        """Whether the candidate may be evaluated: it is the incumbent or was proposed."""
        ...

    async def evaluate(
        self, asked: Sequence[tuple[Candidate, Sequence[Task]]], *, split: Split
    ) -> list[list[Seen]]:
        """Run candidates on tasks, all concurrently, and return one `Seen` per task in order.

        A repeated evaluation runs new rollouts with new seeds. Candidates that are evaluated equally
        often on a task have equal seeds there, so that their scores can be compared in pairs. A
        rollout with an infrastructure failure is repeated once if the budget allows it.

        Args:
            asked: Pairs of a candidate, which is the incumbent or was proposed, and its tasks.
            split: Whether the tasks are training or validation tasks.

        Raises:
            BudgetSpentError: it would exceed the budget; nothing ran.
            CandidateRefusedError: a candidate was not proposed; nothing ran.
            RolloutsLostError: the infrastructure failed in every rollout for some time.
            StoreError: the store failed.
        """
        ...

    def mean(self, seen: Sequence[Seen]) -> float:
        """Return the mean score of the tasks that were not lost; -inf if all were lost."""
        ...

    def propose(
        self,
        texts: Candidate,
        *,
        parent: Candidate,
        why: str = "",
        demonstrations: bool = False,
    ) -> Candidate:
        """Check a new candidate, add it to the journal, and return it with the texts of all prompts.

        Args:
            texts: The new texts; the parent's where a prompt is missing.
            parent: The candidate that was edited.
            why: The reason for the edit, for the journal.
            demonstrations: The texts contain training tasks on purpose: they are not compared with
                the tasks.

        Raises:
            CandidateRefusedError: a placeholder was lost or invented, a text is empty or too long,
                all texts equal the parent's, or the candidate was proposed or refused before.
            ProposalsRefusedError: it was the last of too many refusals in a row.
        """
        ...

    async def edit(self, messages: Sequence[Message], *, role: Role) -> str:
        """Return an editor's or critic's answer, which may be empty.

        A resumed run gets the answers to equal messages from the journal, in their order.

        Raises:
            EditorError: the call failed.
            EditorsFailedError: it was the third failure in a row.
            EditorsSpentError: the limit of calls or tokens is reached; no call was made.
        """
        ...

    def random(self, *parts: str | int) -> random.Random:
        """Return a generator that depends on the run's seed, the phase and these parts only."""
        ...

    def stage(self, text: str) -> None:
        """Show what the optimiser does now, to people who watch the run."""
        ...

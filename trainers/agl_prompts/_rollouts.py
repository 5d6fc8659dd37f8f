"""Rollouts of candidates within the budget of a phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from agl_core.interfaces import Candidate, PromptOutcome, PromptPhase, PromptRollout
from agl_core.types import Task
from agl_prompts._errors import BudgetSpentError, RolloutsLostError
from agl_prompts._guards import task_digest
from agl_prompts._seen import AGAIN, Seen, is_lost, seen_of

_LOST_IN_A_ROW: Final = 8
"""Lost rollouts in a row, over whole evaluations, that end the phase. At 30 % of faults, which are
repeated once, their probability is 0.09**8."""
_SHORT: Final = 16
"""Digits of a digest in a rollout's key."""


class Rollouts:
    """Runs candidates on tasks, and counts each rollout against the budget."""

    def __init__(self, phase: PromptPhase, *, samples: int) -> None:
        """Begin with the whole budget of the phase."""
        self._phase = phase
        self._samples = samples
        self._askings: Counter[tuple[str, str]] = Counter()
        self._lost = 0
        self.last_failure = ""
        """Message of the last lost rollout."""
        self.left = phase.rollouts
        """Number of rollouts left."""
        self.scored = 0
        """Number of rollouts that were not lost."""

    @property
    def candidates(self) -> int:
        """Number of candidates that ran."""
        return len({digest for digest, _ in self._askings})

    async def run(self, asked: Sequence[tuple[str, Candidate, Sequence[Task]]]) -> list[list[Seen]]:
        """Run the samples of every task and return their results.

        Args:
            asked: Digest, texts and tasks of each candidate.

        Raises:
            BudgetSpentError: the budget is too small; nothing ran.
        """
        needed = sum(len(tasks) for _, _, tasks in asked) * self._samples
        if needed > self.left:
            raise BudgetSpentError(
                f"The next evaluation needs {needed} rollouts, and {self.left} of "
                f"{self._phase.rollouts} are left"
            )
        self.left -= needed
        rollouts = [
            self._rollout(digest, candidate, task)
            for digest, candidate, tasks in asked
            for task in tasks
            for _ in range(self._samples)
        ]
        outcomes = await self._phase.run(rollouts) if rollouts else []
        await self._repeat(rollouts, outcomes)
        self._count(outcomes)
        each = iter(outcomes)
        return [
            [seen_of(task, [next(each) for _ in range(self._samples)]) for task in tasks]
            for _, _, tasks in asked
        ]

    def check_lost(self, results: Sequence[Sequence[Seen]]) -> None:
        """Check that the infrastructure works.

        Raises:
            RolloutsLostError: nothing but lost rollouts came back for some time.
        """
        seen = [each for tasks in results for each in tasks]
        if any(not each.lost for each in seen):
            self._lost = 0
            return
        self._lost += len(seen) * self._samples
        if self._lost >= _LOST_IN_A_ROW:
            raise RolloutsLostError(
                f"The last {self._lost} rollouts failed for reasons outside of the agent: "
                f"{self.last_failure}"
            )

    def _rollout(self, digest: str, candidate: Candidate, task: Task) -> PromptRollout:
        content = task_digest(task)
        asking = self._askings[digest, content]
        self._askings[digest, content] += 1
        key = f"{digest[:_SHORT]}-{content[:_SHORT]}-{asking}"
        return PromptRollout(candidate=candidate, task=task, key=key, asking=asking)

    async def _repeat(
        self, rollouts: Sequence[PromptRollout], outcomes: list[PromptOutcome]
    ) -> None:
        """Run again what failed outside of the agent, once and within the budget."""
        failed = [at for at, outcome in enumerate(outcomes) if outcome.failure in AGAIN]
        failed = failed[: self.left]
        if not failed:
            return
        self.left -= len(failed)
        self._phase.losses.add("prompts_rollouts_repeated", len(failed))
        again = [replace(rollouts[at], key=f"{rollouts[at].key}-again") for at in failed]
        for at, outcome in zip(failed, await self._phase.run(again), strict=True):
            outcomes[at] = outcome

    def _count(self, outcomes: Sequence[PromptOutcome]) -> None:
        lost = [outcome for outcome in outcomes if is_lost(outcome)]
        self.scored += len(outcomes) - len(lost)
        self._phase.losses.add("prompts_rollouts_lost", len(lost))
        if lost:
            failure = lost[-1].record.attempt.failure
            self.last_failure = failure.message if failure else str(lost[-1].failure)

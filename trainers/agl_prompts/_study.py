"""The study of one prompt phase: budget, checks, journal and editors around its rollouts."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import fsum
from typing import Any, Literal

from agl_core.interfaces import Candidate, Filter, PromptPhase, Tuned, TunedPrompt
from agl_core.types import Estimate, Task
from agl_prompts._editors import Editors
from agl_prompts._errors import (
    CandidateRefusedError,
    EditorError,
    EditorsFailedError,
    ProposalsRefusedError,
    RolloutsLostError,
    StudyEndedError,
)
from agl_prompts._guards import Copies, Guards, digest_of
from agl_prompts._journal import DAMAGED, Journal
from agl_prompts._options import Role, StudyOptions
from agl_prompts._rollouts import Rollouts
from agl_prompts._scores import Scores
from agl_prompts._seen import Seen, cleaned

_log = logging.getLogger(__name__)

Split = Literal["train", "val"]
"""Which of the tasks of a study."""
Message = Mapping[str, Any]


class Study:
    """A prompt phase as an optimiser sees it: candidates, tasks, scores and editors."""

    def __init__(
        self, phase: PromptPhase, options: StudyOptions, filters: Sequence[Filter] = ()
    ) -> None:
        """Open the journal and read the editors' keys; nothing runs.

        Args:
            phase: The phase.
            options: Those of the optimiser.
            filters: What cleans the results that `evaluate` returns.

        Raises:
            ConfigError: an editor's option is wrong.
            OSError: the journal cannot be read or written.
        """
        self._phase = phase
        self._options = options
        self._filters = filters
        self._incumbent = {name: prompt.text for name, prompt in phase.prompts.items()}
        self._guards = Guards(phase.prompts, max_chars=options.max_chars)
        self._copies: Copies | None = None
        self._scores = Scores(phase.val, incumbent=digest_of(self._incumbent))
        self._rollouts = Rollouts(phase, samples=options.samples)
        self._known: dict[str, dict[str, str]] = {}
        self._refused: set[str] = set()
        self._refused_in_a_row = 0
        self._journal = Journal(phase.directory / f"{phase.number}-{phase.optimizer}.jsonl")
        phase.losses.add(DAMAGED, self._journal.damaged)
        try:
            self._editors = Editors(options, journal=self._journal, losses=phase.losses)
            self._admit(self._incumbent, parent="", why="the incumbent")
        except BaseException:
            self._journal.close()
            raise

    @property
    def prompts(self) -> Mapping[str, TunedPrompt]:
        """The prompts to tune, with the incumbent's texts."""
        return self._phase.prompts

    @property
    def train(self) -> Sequence[Task]:
        return self._phase.train

    @property
    def val(self) -> Sequence[Task]:
        return self._phase.val

    @property
    def seed(self) -> int:
        return self._phase.seed

    @property
    def options(self) -> StudyOptions:
        return self._options

    @property
    def left(self) -> int:
        """Number of rollouts left in the budget."""
        return self._rollouts.left

    @property
    def incumbent(self) -> Candidate:
        """The texts at the beginning of the phase."""
        return dict(self._incumbent)

    @property
    def best(self) -> Candidate:
        """The candidate with the highest mean over all validation tasks; the first wins ties.

        A candidate counts once each validation task has run and at least half of them were not
        lost; the incumbent if there is no such candidate. Repeated evaluations of a task are
        averaged.
        """
        return dict(self._known[self._scores.best])

    def scored(self, candidate: Candidate) -> Estimate | None:
        """Return a candidate's mean over the validation tasks; None if it does not count yet."""
        return self._scores.estimate(self.digest(candidate))

    def cost(self, tasks: int) -> int:
        """Return the number of rollouts that one candidate needs on a number of tasks."""
        return tasks * self._options.samples

    def whole(self, candidate: Candidate) -> dict[str, str]:
        """Return the texts of all prompts; the incumbent's for prompts without a text."""
        return {**self._incumbent, **candidate}

    def digest(self, candidate: Candidate) -> str:
        """Return a digest of a candidate's texts, without the space around each."""
        return digest_of(self.whole(candidate))

    def knows(self, candidate: Candidate) -> bool:
        """Whether the candidate may be evaluated: it is the incumbent or was proposed."""
        return self.digest(candidate) in self._known

    async def evaluate(
        self, asked: Sequence[tuple[Candidate, Sequence[Task]]], *, split: Split
    ) -> list[list[Seen]]:
        """Run candidates on tasks concurrently, and return one `Seen` per task in order.

        A repeated evaluation runs new rollouts with new seeds. Candidates that were evaluated
        equally often on a task get equal seeds there, so that their scores can be compared in
        pairs. A rollout with an infrastructure failure is repeated once if the budget allows it.

        Args:
            asked: Pairs of a candidate, which is the incumbent or was proposed, and its tasks.
            split: Whether these are training or validation tasks.

        Raises:
            BudgetSpentError: it would exceed the budget; nothing ran.
            CandidateRefusedError: a candidate was not proposed; nothing ran.
            RolloutsLostError: the infrastructure failed in every rollout for some time.
            StoreError: the store failed.
        """
        pairs: list[tuple[str, Candidate, Sequence[Task]]] = []
        for candidate, tasks in asked:
            pairs.append((self.digest(candidate), self._known_texts(candidate), tasks))
        results = await self._rollouts.run(pairs)
        for (digest, _, tasks), seen in zip(pairs, results, strict=True):
            if split == "val":
                self._scores.add(digest, seen)
            self._write_score(digest, split, tasks, seen)
        self._rollouts.check_lost(results)
        for each in self._filters:
            results = [[cleaned(one, each) for one in seen] for seen in results]
        return results

    def mean(self, seen: Sequence[Seen]) -> float:
        """Return the mean score of the tasks that were not lost; -inf if all were lost."""
        scores = [each.score for each in seen if not each.lost]
        return fsum(scores) / len(scores) if scores else float("-inf")

    def propose(
        self,
        texts: Candidate,
        *,
        parent: Candidate,
        why: str = "",
        demonstrations: bool = False,
    ) -> Candidate:
        """Check a new candidate, write it to the journal, and return the texts of all prompts.

        Args:
            texts: The new texts; the parent's for prompts without a text.
            parent: The candidate that was edited.
            why: The reason for the edit, for the journal.
            demonstrations: The texts contain tasks on purpose, so that they are not searched for
                copied passages.

        Raises:
            CandidateRefusedError: a placeholder was lost or invented, a text is empty or too long,
                all texts equal the parent's, or the candidate was proposed or refused before.
            ProposalsRefusedError: it was the last of too many refusals in a row.
        """
        before = self.whole(parent)
        made = {**before, **texts}
        digest = digest_of(made)
        try:
            self._check_new(digest, before)
            self._guards.check(made)
        except CandidateRefusedError as refusal:
            self._refuse(digest, made, refusal)
            raise
        self._refused_in_a_row = 0
        if not demonstrations:
            self._report_copies(texts, before)
        self._admit(made, parent=digest_of(before), why=why)
        return dict(made)

    async def edit(self, messages: Sequence[Message], *, role: Role) -> str:
        """Return an editor's or critic's answer, which may be empty.

        A resumed run gets the answers to equal messages from the journal, in their order.

        Raises:
            EditorError: the call failed.
            EditorsFailedError: it was the third failure in a row.
            EditorsSpentError: the limit of calls or tokens is reached; no call was made.
        """
        return await self._editors.ask(messages, role)

    def random(self, *parts: str | int) -> random.Random:
        """Return a generator that depends on the run's seed, the phase and these parts only."""
        whole = json.dumps([self.seed, self._phase.number, self._phase.optimizer, *parts])
        return random.Random(sha256(whole.encode()).digest())  # noqa: S311  not for secrets

    def stage(self, text: str) -> None:
        """Show what the optimiser does now, to people who watch the run."""
        self._phase.stage(text)

    def check(self, roles: Sequence[Role]) -> None:
        """Check that the models of these roles are configured.

        Raises:
            ConfigError: one is missing.
        """
        self._editors.check(roles, self._phase.optimizer)

    def check_ended(self, ended: StudyEndedError | None) -> None:
        """Check that the ended study has a result: that editors and rollouts worked at all.

        Raises:
            EditorError: editors were called and none answered, or one failed in all of its calls.
            RolloutsLostError: no rollout had a score.
        """
        calls, answered = self._editors.calls, self._editors.answered
        failed = isinstance(ended, EditorsFailedError) and any(not answered[role] for role in calls)
        if calls and (failed or not answered):
            raise EditorError(
                f"No call of an editor model was answered: {self._editors.last_error}"
            ) from ended
        if not self._rollouts.scored and self.left < self._phase.rollouts:
            raise RolloutsLostError(
                f"All rollouts failed for reasons outside of the agent: "
                f"{self._rollouts.last_failure}"
            ) from ended

    def result(self, best: Candidate, reason: str) -> Tuned:
        """Write the choice to the journal and return the result of the phase.

        Args:
            best: The chosen candidate.
            reason: Why the phase ended before its budget was used; empty otherwise.

        Raises:
            CandidateRefusedError: the candidate was not proposed.
        """
        texts = self._known_texts(best)
        after = self.scored(best)
        constant = self._scores.constant
        if constant is not None:
            self._phase.losses.add("prompts_scores_equal")
            said = f"all validation scores were {constant:.4g}, so that no candidate is better"
            _log.warning("%s: %s", self._phase.optimizer, said)
            reason = f"{reason}; {said}" if reason else said
        self._journal.write(
            "chosen", digest=digest_of(texts), texts=texts, mean=after and after.mean, reason=reason
        )
        return Tuned(
            texts=texts,
            before=self.scored(self._incumbent),
            after=after,
            rollouts=self._phase.rollouts - self.left,
            candidates=self._rollouts.candidates,
            calls=dict(self._editors.calls),
            reason=reason,
        )

    async def close(self) -> None:
        """Close the editors' connections and the journal; idempotent."""
        self._journal.close()
        await self._editors.close()

    def _check_new(self, digest: str, before: Candidate) -> None:
        if digest == digest_of(before):
            raise CandidateRefusedError("same", "The new texts equal those of their parent")
        if digest in self._known or digest in self._refused:
            fate = "proposed" if digest in self._known else "refused"
            raise CandidateRefusedError("repeated", f"The candidate was {fate} before")

    def _known_texts(self, candidate: Candidate) -> dict[str, str]:
        texts = self._known.get(self.digest(candidate))
        if texts is None:
            raise CandidateRefusedError(
                "unknown", "A candidate was not proposed: pass it to Study.propose first"
            )
        return texts

    def _admit(self, texts: dict[str, str], *, parent: str, why: str) -> None:
        digest = digest_of(texts)
        self._known[digest] = texts
        self._journal.write("candidate", digest=digest, texts=texts, parent=parent, why=why)

    def _refuse(self, digest: str, texts: Candidate, refusal: CandidateRefusedError) -> None:
        if digest not in self._known:
            self._refused.add(digest)
        self._phase.losses.add(f"prompts_refused_{refusal.cause}")
        size = {name: len(text) for name, text in texts.items()}
        self._journal.write(
            "refused", digest=digest, cause=refusal.cause, why=str(refusal), chars=size
        )
        self._refused_in_a_row += 1
        if self._refused_in_a_row >= self._options.max_refused:
            raise ProposalsRefusedError(
                f"{self._refused_in_a_row} candidates in a row were refused; the last one: "
                f"{refusal}"
            ) from refusal

    def _report_copies(self, texts: Candidate, parent: Candidate) -> None:
        if self._copies is None:
            self._copies = Copies([*self.train, *self.val])
        passage = self._copies.found(texts, parent=parent)
        if passage:
            self._phase.losses.add("prompts_copied_tasks")
            _log.warning(
                "A proposed prompt contains a passage of a task (%r): it may answer these tasks "
                "by heart and no others",
                passage,
            )

    def _write_score(
        self, digest: str, split: Split, tasks: Sequence[Task], seen: Sequence[Seen]
    ) -> None:
        kept = [each.score for each in seen if not each.lost]
        estimate = self._scores.estimate_of(kept)
        self._journal.write(
            "score",
            digest=digest,
            split=split,
            tasks=[task.id for task in tasks],
            scores=[None if each.lost else each.score for each in seen],
            mean=estimate and estimate.mean,
            low=estimate and estimate.low,
            high=estimate and estimate.high,
            rollouts=self.cost(len(tasks)),
        )

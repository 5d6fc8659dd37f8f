"""gepa's adapter interface over a `Study`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agl_prompts import (
    CandidateRefusedError,
    EditorError,
    RolloutsLostError,
    Split,
    Study,
    new_text,
)
from gepa.core.adapter import ProposalFn

from agl_core.interfaces import Candidate
from agl_core.types import Task
from agl_gepa._bridge import Bridge
from agl_gepa._options import GepaOptions
from agl_gepa._records import ReflectiveRecord, records
from agl_gepa._scores import GepaEvaluation, refused, scored

FAILED: Final = "\0"
"""Stands for the text of a call of the editor that failed; a child with it is not proposed."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A task as gepa's data sets hold it."""

    task: Task
    split: Split


_Item = tuple[Mapping[str, str], Sequence[Instance]]
"""A candidate and its tasks."""


@dataclass(frozen=True, slots=True)
class _Edit:
    """The request for a child in this iteration."""

    parent: Mapping[str, str]
    names: frozenset[str]
    """Prompts that change."""
    results: GepaEvaluation
    """Of the parent on the minibatch."""

    def made(self, texts: Mapping[str, str], batch: Sequence[Instance]) -> bool:
        """Return whether a candidate on a minibatch may be the child."""
        seen = self.results.trajectories or []
        return [each.task.id for each in seen] == [each.task.id for each in batch] and all(
            name in self.names or texts[name] == self.parent[name] for name in texts
        )


class StudyAdapter:
    """What gepa calls from its thread; all work on the study is done on the event loop.

    A candidate that gepa evaluates for the first time is proposed to the study. If it is refused,
    it gets the worst score, and no rollout runs.
    """

    propose_new_texts: ProposalFn | None = None
    """gepa's own: it requests a text from `Editor` with its template."""

    def __init__(self, study: Study, bridge: Bridge, options: GepaOptions) -> None:
        """Create an adapter for one run of gepa."""
        self._study = study
        self._bridge = bridge
        self._options = options
        incumbent = study.whole(study.incumbent)
        self._known: dict[str, Candidate] = {study.digest(incumbent): incumbent}
        self._edits: list[_Edit] = []
        self._incumbent: GepaEvaluation | None = None
        self._perfect: set[str] = set()
        """Training tasks on which parents had perfect scores since the last one that was not."""

    @property
    def all_perfect(self) -> bool:
        """Whether gepa skips every training task, as its parents' scores are perfect."""
        tasks = {task.id for task in self._study.train}
        return self._options.skip_perfect_score and self._perfect >= tasks

    def evaluate(
        self, batch: list[Instance], candidate: dict[str, str], capture_traces: bool = False
    ) -> GepaEvaluation:
        """Evaluate one candidate; traces are always captured.

        Raises:
            EndedError: the study ended or failed, or the run was cancelled.
        """
        del capture_traces
        (only,) = self.batch_evaluate([(candidate, batch)])
        return only

    def batch_evaluate(
        self, items: list[tuple[dict[str, str], list[Instance]]]
    ) -> list[GepaEvaluation]:
        """Evaluate candidates, each on its own tasks of one split, concurrently."""
        return self._bridge.call(self._evaluate(items))

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: GepaEvaluation, components_to_update: list[str]
    ) -> dict[str, list[ReflectiveRecord]]:
        """Return the examples of each prompt to rewrite."""
        seen = eval_batch.trajectories or []
        size = self._options.example_chars
        examples = {
            name: records(self._study.prompts[name], candidate[name], seen, max_chars=size)
            for name in components_to_update
        }
        if any(examples.values()):  # without any, gepa makes no child
            self._edits.append(_Edit(candidate, frozenset(components_to_update), eval_batch))
        return examples

    async def _evaluate(self, items: Sequence[_Item]) -> list[GepaEvaluation]:
        """Evaluate parents, then children, or candidates on validation tasks."""
        edits, self._edits = self._edits, []
        found = [next((edit for edit in edits if edit.made(*item)), None) for item in items]
        admitted = [
            self._propose(texts, edit.parent if edit else None) if edits else self._old(texts)
            for (texts, _), edit in zip(items, found, strict=True)
        ]
        asked = [
            (candidate, [instance.task for instance in batch])
            for candidate, (_, batch) in zip(admitted, items, strict=True)
            if candidate is not None
        ]
        split = items[0][1][0].split
        seen = iter(await self._study.evaluate(asked, split=split) if asked else [])
        evaluations: list[GepaEvaluation] = []
        for candidate, (_, batch), edit in zip(admitted, items, found, strict=True):
            if candidate is None:
                evaluations.append(refused(len(batch)))
                continue
            other = edit.results if edit else self._validated(batch)
            cost = self._study.cost(len(batch))
            evaluations.append(scored(next(seen), other, rollouts=cost))
        if split == "val" and self._incumbent is None:
            self._incumbent = _checked(evaluations[0])
        if split == "train" and not edits:
            for evaluation, (_, batch) in zip(evaluations, items, strict=True):
                self._note_perfect(evaluation, batch)
        return evaluations

    def _validated(self, batch: Sequence[Instance]) -> GepaEvaluation | None:
        """Return the incumbent's results if these are all validation tasks."""
        whole = batch[0].split == "val" and len(batch) == len(self._study.val)
        return self._incumbent if whole else None

    def _old(self, texts: Mapping[str, str]) -> Candidate | None:
        """Return a candidate that ran before; a merged one is proposed."""
        return self._known.get(self._study.digest(texts)) or self._propose(texts, None)

    def _propose(self, texts: Mapping[str, str], parent: Candidate | None) -> Candidate | None:
        """Return a new candidate; None if it is refused.

        Args:
            texts: Its texts.
            parent: The candidate that was edited; None if two were merged.
        """
        if FAILED in texts.values():
            return None
        why = "reflection" if parent else "merge"
        parent = parent or max(self._known.values(), key=lambda each: _equal(texts, each))
        try:
            candidate = self._study.propose(texts, parent=parent, why=why)
        except CandidateRefusedError:
            return None
        self._known[self._study.digest(candidate)] = candidate
        return candidate

    def _note_perfect(self, parent: GepaEvaluation, batch: Sequence[Instance]) -> None:
        if all(score >= self._options.perfect_score for score in parent.scores):
            self._perfect.update(instance.task.id for instance in batch)
        else:
            self._perfect.clear()


def _equal(texts: Candidate, others: Candidate) -> int:
    return sum(texts[name] == others.get(name) for name in texts)


def _checked(incumbent: GepaEvaluation) -> GepaEvaluation:
    """Return the incumbent's results, with which gepa compares candidates.

    Raises:
        RolloutsLostError: it has no score.
    """
    if not incumbent.trajectories:
        raise RolloutsLostError(
            f"All rollouts of the incumbent on the {len(incumbent.scores)} validation tasks failed "
            f"for reasons outside of the agent: see them with `agl trace`"
        )
    return incumbent


class Editor:
    """gepa's language model over `Study.edit`; its answers hold one fenced block, as gepa reads it.

    gepa takes everything between the first and the last fence, or all of an answer without one; so
    the text is read by `new_text` first. A failed call is no exception, as gepa would repeat it.
    """

    def __init__(self, study: Study, bridge: Bridge) -> None:
        """Create the editor for one run of gepa."""
        self._study = study
        self._bridge = bridge

    def __call__(self, prompt: str | list[dict[str, Any]]) -> str:
        """Return the answer to one request."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return self.batch_complete([messages])[0]

    def batch_complete(self, messages_list: list[list[dict[str, Any]]]) -> list[str]:
        """Return the answers to several requests, made concurrently."""
        return self._bridge.call(self._edit(messages_list))

    async def _edit(self, requests: list[list[dict[str, Any]]]) -> list[str]:
        answers = await asyncio.gather(*map(self._answer, requests), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, str)]

    async def _answer(self, messages: list[dict[str, Any]]) -> str:
        try:
            text = new_text(await self._study.edit(messages, role="editor"))
        except EditorError:
            return FAILED
        return f"```\n{text}\n```"

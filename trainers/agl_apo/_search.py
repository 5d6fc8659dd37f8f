"""The beam of candidates and its rounds."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from agl_prompts import (
    CandidateRefusedError,
    Seen,
    Study,
    StudyEndedError,
    p_value,
    standings,
)

from agl_apo._options import ApoOptions
from agl_apo._writer import EditedPrompt, PromptWriter
from agl_core.interfaces import Candidate
from agl_core.types import Task

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(eq=False, slots=True, kw_only=True)
class _Node:
    """A candidate with its results."""

    texts: Candidate
    order: list[Task]
    """The training tasks in the order in which its branches show them."""
    at: int = 0
    """Number of tasks that its branches have taken from `order`, which repeats."""
    shown: dict[str, Seen] = field(default_factory=dict[str, Seen])
    """Id of a training task to its result."""
    batch: list[Seen] = field(default_factory=list[Seen])
    """Results on the batch of validation tasks."""
    rest: list[Seen] | None = None
    """Results on the other validation tasks, which choose no candidate."""

    def take(self, start: int, count: int) -> list[Task]:
        """Return the next tasks from a position of the order, each at most once."""
        count = min(count, len(self.order))
        return [self.order[(start + offset) % len(self.order)] for offset in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch:
    """One attempt to improve a candidate."""

    number: int
    """0-based, counted through the phase."""
    parent: _Node
    tasks: list[Task]


class Search:
    """One phase of `Apo`."""

    def __init__(self, study: Study, options: ApoOptions, writer: PromptWriter) -> None:
        self._study = study
        self._options = options
        self._writer = writer
        order = study.random("batch").sample(list(study.val), len(study.val))
        size = options.batch_of(len(order))
        self._batch, self._rest = order[:size], order[size:]
        self._incumbent = self._node(study.incumbent)
        self._beam = [self._incumbent]
        self._judged = [self._incumbent]
        """The validated candidates, the incumbent first."""
        self._branches = 0
        self._children_made = 0

    async def run(self) -> Candidate:
        """Return the result.

        Raises:
            StudyEndedError: the search ended early, or no candidate is better; it has the result.
        """
        try:
            return await self._rounds()
        except StudyEndedError as end:
            end.chosen = self._choice().texts
            raise

    async def _rounds(self) -> Candidate:
        study, incumbent, rounds = self._study, self._incumbent, self._options.rounds
        study.stage("scores the incumbent prompts")
        tasks = [*self._batch, *self._rest]
        [seen] = await study.evaluate([(incumbent.texts, tasks)], split="val")
        incumbent.batch, incumbent.rest = seen[: len(self._batch)], seen[len(self._batch) :]
        for number in range(1, rounds + 1):
            branches = self._plan(rounds=rounds - number + 1)
            if not branches:
                break
            study.stage(f"round {number} of {rounds}: {len(branches)} proposals")
            await self._show(branches)
            children, ended = await self._children(branches)
            await self._extend(children)
            await self._validate()
            if ended is not None:
                raise ended
        best = self._choice()
        if best is incumbent:
            raise StudyEndedError(self._nothing_better())
        if self._plan(rounds=1):
            raise StudyEndedError(
                f"{rounds} rounds are done and {study.left} rollouts are left: raise "
                f"optimizers.apo.rounds to use them"
            )
        return best.texts

    def _plan(self, *, rounds: int) -> list[_Branch]:
        """Return the branches of a round, spread over the beam; none if the budget is used up.

        The rollouts are shared out to the rounds that are left, as edits of edits find more than
        many edits of one text; each keeps what the validation of its leader needs.

        Args:
            rounds: Number of rounds that are left, with this one.
        """
        study, options = self._study, self._options
        validation, batch = study.cost(len(self._rest)), study.cost(len(self._batch))
        left = study.left - validation
        share = (study.left - validation * rounds) // rounds
        at = {id(node): node.at for node in self._beam}
        known = {id(node): set(node.shown) for node in self._beam}
        places = itertools.islice(itertools.cycle(self._beam), options.beam_width)
        branches: list[_Branch] = []
        used = 0
        for parent in [*places] * options.branch_factor:
            tasks = parent.take(at[id(parent)], options.gradient_batch)
            new = {task.id for task in tasks} - known[id(parent)]
            used += study.cost(len(new)) + batch
            if used > (share if branches else left):
                break
            at[id(parent)] += len(tasks)
            known[id(parent)] |= new
            number = self._branches + len(branches)
            branches.append(_Branch(number=number, parent=parent, tasks=tasks))
        return branches

    async def _show(self, branches: Sequence[_Branch]) -> None:
        """Run the parents on the branches' training tasks; a parent runs once on a task."""
        wanted: dict[int, tuple[_Node, dict[str, Task]]] = {}
        for branch in branches:
            parent = branch.parent
            _, tasks = wanted.setdefault(id(parent), (parent, {}))
            tasks.update({task.id: task for task in branch.tasks if task.id not in parent.shown})
            parent.at += len(branch.tasks)
        asked = [(node, list(tasks.values())) for node, tasks in wanted.values() if tasks]
        self._branches += len(branches)
        results = await self._study.evaluate(
            [(node.texts, tasks) for node, tasks in asked], split="train"
        )
        for (node, _), seen in zip(asked, results, strict=True):
            node.shown.update({each.task.id: each for each in seen if not each.lost})

    async def _extend(self, children: Sequence[_Node]) -> None:
        """Run the new candidates on the batch and keep the best of old and new in the beam."""
        study = self._study
        left = study.left - study.cost(len(self._rest))
        # Repeated rollouts may have used what was planned for the last ones.
        children = children[: max(left // study.cost(len(self._batch)), 0)]
        if not children:
            return
        results = await study.evaluate(
            [(child.texts, self._batch) for child in children], split="val"
        )
        for child, seen in zip(children, results, strict=True):
            child.batch = seen
        nodes = [*self._beam, *children]
        scores = standings([node.batch for node in nodes])
        # The sort is stable: of equal scores the older candidate stays.
        ranked = sorted(zip(scores, nodes, strict=True), key=lambda each: -each[0])
        self._beam = [node for _, node in ranked[: self._options.beam_width]]

    async def _validate(self) -> None:
        """Run the best candidate that was not yet validated, if it is ahead of the incumbent."""
        for node in self._beam:
            if node is self._incumbent:
                return
            if node.rest is None:
                asked = [(node.texts, self._rest)]
                [node.rest] = await self._study.evaluate(asked, split="val")
                self._judged.append(node)
                return

    def _choice(self) -> _Node:
        """Return the validated candidate with the highest mean that is better than the incumbent."""
        if self._incumbent.rest is None:
            return self._incumbent
        better = [self._incumbent]
        better += [node for node in self._judged[1:] if self._p(node) <= self._options.level]
        scores = standings([self._deciding(node) for node in better])
        return better[scores.index(max(scores))]

    def _p(self, node: _Node) -> float:
        return p_value(self._deciding(self._incumbent), self._deciding(node))

    def _deciding(self, node: _Node) -> list[Seen]:
        """Return the results that decide: without a confidence, those of the batch too."""
        rest = node.rest or []
        return rest if self._options.confidence else [*node.batch, *rest]

    def _nothing_better(self) -> str:
        if not self._children_made:
            return f"none of {self._branches} edits gave a new candidate: see the journal"
        if len(self._judged) == 1:
            return (
                f"none of {self._children_made} candidates was ahead of the incumbent on the "
                f"validation batch of {len(self._batch)} tasks"
            )
        best = min(self._judged[1:], key=self._p)
        after, before = (self._study.mean(self._deciding(node)) for node in (best, self._incumbent))
        return (
            f"no candidate is better than the incumbent at confidence {self._options.confidence:g}: "
            f"the best of {len(self._judged) - 1} has {after:.3g} against {before:.3g} on "
            f"{len(self._deciding(best))} validation tasks that chose no candidate (p "
            f"{self._p(best):.2g}, required {self._options.level:.2g}): add validation tasks or "
            f"samples, or lower optimizers.apo.confidence"
        )

    async def _children(
        self, branches: Sequence[_Branch]
    ) -> tuple[list[_Node], StudyEndedError | None]:
        """Return the new candidates, and why there are no more, if the study ended meanwhile.

        A branch has a candidate if its critique, edit and proposal succeeded.
        """
        edits, ended = await together(branches, self._edit, at_once=self._options.at_once)
        children: list[_Node] = []
        for branch, edit in zip(branches, edits, strict=True):
            if edit is None:
                continue
            try:
                texts = self._study.propose(
                    {edit.prompt: edit.text}, parent=branch.parent.texts, why=edit.why
                )
            except CandidateRefusedError:  # the study counts it
                continue
            except StudyEndedError as refused:
                ended = ended or refused
                break
            children.append(self._node(texts))
        self._children_made += len(children)
        return children, ended

    async def _edit(self, branch: _Branch) -> EditedPrompt | None:
        shown = branch.parent.shown
        seen = [shown[task.id] for task in branch.tasks if task.id in shown]
        return await self._writer.edit(branch.parent.texts, seen, number=branch.number)

    def _node(self, texts: Candidate) -> _Node:
        order = list(self._study.train)
        self._study.random("tasks", self._study.digest(texts)).shuffle(order)
        return _Node(texts=texts, order=order)


async def together(
    items: Sequence[_Item], work: Callable[[_Item], Awaitable[_Result]], *, at_once: int
) -> tuple[list[_Result | None], StudyEndedError | None]:
    """Return the results in the order of the items, and the error that ended the study, if any.

    After that error no more work begins; what did not finish is None.
    """
    gate = asyncio.Semaphore(at_once)
    results: list[_Result | None] = [None] * len(items)
    errors: list[StudyEndedError] = []

    async def one(index: int) -> None:
        async with gate:
            if errors:
                return
            try:
                results[index] = await work(items[index])
            except StudyEndedError as error:
                errors.append(error)

    tasks = [asyncio.ensure_future(one(index)) for index in range(len(items))]
    try:
        await asyncio.gather(*tasks)
    finally:  # a task group would wrap the error of one task
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return results, errors[0] if errors else None

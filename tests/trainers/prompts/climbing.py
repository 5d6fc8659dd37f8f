"""A simple optimiser, hill climbing with an editor, and optimisers with one flaw each."""

from __future__ import annotations

import random
import uuid

from agl_prompts import (
    CandidateRefusedError,
    EditorError,
    PromptOptimizer,
    StudyEndedError,
    StudyOptions,
    describe,
    new_text,
    tunes,
)
from msgspec.structs import replace

from agl_core.errors import TrainingError
from agl_core.interfaces import Tuned


class ClimbOptions(StudyOptions):
    batch: int = 2
    flaw: str = ""


class Climb(PromptOptimizer):
    roles = ("editor",)

    def least(self, study):
        return self.each(study) + study.cost(len(study.val))

    def each(self, study):
        return study.cost(self.options.batch) + study.cost(len(study.val))

    async def optimize(self, study):
        best = study.incumbent
        highest = await self.score(study, best)
        number = 0
        while study.left >= self.each(study):
            number += 1
            child = await self.child(study, best, number)
            if child is None:
                continue
            score = await self.score(study, child)
            if score > highest:
                best, highest = child, score
        return best

    async def score(self, study, candidate):
        (seen,) = await study.evaluate([(candidate, study.val)], split="val")
        return study.mean(seen)

    async def child(self, study, best, number):
        batch = study.random("batch", number).sample(list(study.train), self.options.batch)
        (seen,) = await study.evaluate([(best, batch)], split="train")
        name = sorted(study.prompts)[number % len(study.prompts)]
        try:
            answer = await study.edit(messages(best[name], seen), role="editor")
            return study.propose({name: new_text(answer)}, parent=best)
        except (EditorError, CandidateRefusedError):
            return None


def messages(text, seen):
    results = "\n\n".join(describe(each) for each in seen)
    return [{"role": "user", "content": f"{results}\n\nImprove this prompt:\n{text}"}]


climb = tunes(Climb)


class Flawed(Climb):
    """Hill climbing with the flaw that its options name."""

    def __init__(self, options):
        super().__init__(options)
        self.scores = []

    def least(self, study):
        return 1 if self.options.flaw == "any_budget" else super().least(study)

    async def optimize(self, study):
        flaw = self.options.flaw
        if flaw == "overspends":
            study._rollouts.left += 60
        if flaw == "forgets_edits":
            study._journal.edits.clear()
        if flaw == "new_keys":
            made = study._rollouts._rollout
            study._rollouts._rollout = lambda *given: _renamed(made(*given))
        if flaw == "hides_errors":
            return await self._hiding(study)
        try:
            return await super().optimize(study)
        except StudyEndedError as ended:
            if flaw == "different_tasks":
                ended.chosen = max(self.scores, key=lambda each: each[0])[1]
            raise

    async def _hiding(self, study):
        try:
            return await super().optimize(study)
        except StudyEndedError:
            while study.left >= study.cost(1):
                await self._one(study)
            return study.incumbent

    async def _one(self, study):
        try:
            await study.evaluate([(study.incumbent, study.val[:1])], split="val")
            await study.edit([], role="editor")
        except TrainingError:
            pass

    async def score(self, study, candidate):
        flaw = self.options.flaw
        tasks = study.val
        if flaw == "different_tasks":
            tasks = study.random("val", study.left).sample(list(tasks), 3)
        (seen,) = await study.evaluate([(candidate, tasks)], split="val")
        if flaw == "lost_is_zero":
            return sum(each.score for each in seen) / len(seen)
        if flaw == "only_finished":
            done = [each.score for each in seen if each.failure is None]
            return sum(done) / max(len(done), 1)
        if flaw == "keeps_last":
            return -study.left
        self.scores.append((study.mean(seen), candidate))
        return study.mean(seen)

    async def child(self, study, best, number):
        flaw = self.options.flaw
        if flaw == "unseeded":
            number = random.random()
        if flaw == "unguarded":
            return await self._unguarded(study, best)
        if flaw == "no_feedback":
            return self._no_feedback(study, best, number)
        return await super().child(study, best, int(number * 1e9) if flaw == "unseeded" else number)

    async def _unguarded(self, study, best):
        answer = await study.edit(messages(best["writer"], []), role="editor")
        texts = {"writer": new_text(answer) or answer}
        study._admit(texts, parent="", why="")
        return texts

    def _no_feedback(self, study, best, number):
        words = study.random(number).sample(["slang", "commas", "dashes", "puns", "jokes"], 2)
        try:
            return study.propose({"writer": f"{best['writer']} {' '.join(words)}"}, parent=best)
        except CandidateRefusedError:
            return None


class _Misreporting:
    def __init__(self, options):
        self._inner = climb(options)

    async def optimize(self, phase):
        tuned = await self._inner.optimize(phase)
        return Tuned(texts=tuned.texts, rollouts=tuned.rollouts - 1, candidates=tuned.candidates)


class _Silent:
    def __init__(self, options):
        self._inner = climb(options)

    async def optimize(self, phase):
        phase.stage = lambda text: None
        return await self._inner.optimize(phase)


def flawed(options):
    if options.flaw == "misreports":
        return _Misreporting(options)
    if options.flaw == "silent":
        return _Silent(options)
    return tunes(Flawed)(options)


def _renamed(rollout):
    return replace(rollout, key=uuid.uuid4().hex)

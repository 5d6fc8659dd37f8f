"""A prompt phase whose scores a test gives."""

from __future__ import annotations

from agl_core.interfaces import AttemptRecord, PromptOutcome, TunedPrompt
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Failure,
    Losses,
    Reward,
    Rollout,
    Span,
    SpanKind,
    Task,
)

TEXT = "Answer {question} briefly."


def prompt(text=TEXT, *, name="writer", placeholders=("question",)):
    return TunedPrompt(name=name, agents=(name,), text=text, placeholders=frozenset(placeholders))


class FakePhase:
    """Runs nothing: `score(rollout)` returns a score, or a failure."""

    number = 0
    optimizer = "fake"
    seed = 0

    def __init__(self, directory, *, rollouts=100, prompts=None, score=lambda rollout: 0.5):
        self.directory = directory
        self.rollouts = rollouts
        self.prompts = prompts or {"writer": prompt()}
        self.train = [Task(id=str(n), input=f"training question {n}") for n in range(4)]
        self.val = [Task(id=str(n), input=f"validation question {n}") for n in range(4)]
        self.losses = Losses()
        self.stages = []
        self.asked = []
        self.score = score

    async def run(self, asked):
        self.asked += asked
        return [outcome(rollout, self.score(rollout)) for rollout in asked]

    def stage(self, text):
        self.stages.append(text)


def outcome(rollout, result, *, rewards=()):
    failure = None if isinstance(result, float) else result
    key = rollout.key
    spans = [
        Span(
            id=f"{key}-{number}",
            rollout_id=key,
            attempt_id=key,
            kind=SpanKind.REWARD,
            name="reward",
            sequence=number,
            reward=reward,
        )
        for number, reward in enumerate(rewards or [Reward(value=1.0, why="because")])
    ]
    attempt = Attempt(
        id=key,
        rollout_id=key,
        fence=1,
        worker="w",
        status=AttemptStatus.SUCCEEDED if failure is None else AttemptStatus.FAILED,
        failure=failure and Failure(kind=failure, message=f"failed with {failure.value}"),
    )
    return PromptOutcome(
        record=AttemptRecord(
            rollout=Rollout(id=key, task=rollout.task, run_id="run"), attempt=attempt, spans=spans
        ),
        score=0.0 if failure else result,
        failure=failure,
    )

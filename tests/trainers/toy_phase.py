"""A prompt phase without models: a function scores texts, and another edits them."""

from __future__ import annotations

import inspect
import random
import sys
import types
import zlib
from dataclasses import dataclass, field

import pytest
from agl_testing.attempts import ScriptedAttempt

from agl_core.interfaces import PromptOutcome, TunedPrompt
from agl_core.types import AttemptStatus, Choice, Failure, FailureKind, Losses, PromptTemplate, Task


def tasks(prefix, count):
    return [Task(id=f"{prefix}{i}", input=f"question {prefix}{i}") for i in range(count)]


def tuned(name="writer", text="Answer.", **fields):
    fields.setdefault("agents", (name,))
    found = PromptTemplate(template=text).placeholders
    return TunedPrompt(name=name, text=text, placeholders=found, **fields)


@dataclass
class ToyPhase:
    """Implements `PromptPhase`. `score(texts, task, rng)` returns a score or a `FailureKind`.

    A result that was run under a key is kept in `finished`, so that a second phase with the same
    dictionary resumes the first one.
    """

    directory: object
    score: object
    prompts: dict = field(default_factory=lambda: {"writer": tuned()})
    train: list = field(default_factory=lambda: tasks("t", 12))
    val: list = field(default_factory=lambda: tasks("v", 16))
    rollouts: int = 400
    seed: int = 0
    number: int = 0
    optimizer: str = "toy"
    losses: Losses = field(default_factory=Losses)
    finished: dict = field(default_factory=dict)
    penalty: float = 0.0
    stops_after: int | None = None

    def __post_init__(self):
        self.asked = []
        """Lists of rollouts, one per call of `run`."""
        self.ran = []
        """Keys of the rollouts that ran."""
        self.stages = []

    def stage(self, text):
        self.stages.append(text)

    async def run(self, asked):
        self.asked.append(list(asked))
        return [self._one(each) for each in asked]

    def _one(self, each):
        if each.key not in self.finished:
            if self.stops_after is not None and len(self.ran) >= self.stops_after:
                raise KeyboardInterrupt
            self.ran.append(each.key)
            self.finished[each.key] = self._outcome(each)
        return self.finished[each.key]

    def _outcome(self, each):
        texts = {name: prompt.text for name, prompt in self.prompts.items()} | dict(each.candidate)
        rng = random.Random(zlib.crc32(f"{self.seed} {each.key}".encode()))
        result = self.score(texts, each.task, rng)
        failed = isinstance(result, FailureKind)
        attempt = ScriptedAttempt(each.key, task=each.task.id)
        for prompt in self.prompts.values():
            agent = prompt.agents[0]
            attempt.call(
                agent,
                [1],
                messages=[
                    {"role": "system", "content": texts[prompt.name]},
                    {"role": "user", "content": str(each.task.input)},
                ],
                choices=[Choice(index=0, text=f"{agent} answers {each.task.id}")],
            )
        record = attempt.record(
            AttemptStatus.FAILED if failed else AttemptStatus.SUCCEEDED,
            failure=Failure(kind=result, message="it broke") if failed else None,
        )
        return PromptOutcome(
            record=record,
            score=self.penalty if failed else float(result),
            failure=result if failed else None,
        )

    def evaluated(self, prefix="v"):
        """Return the set of (text of the only prompt, task id) of tasks with this prefix."""
        (name,) = self.prompts
        return {
            (each.candidate.get(name, self.prompts[name].text), each.task.id)
            for call in self.asked
            for each in call
            if each.task.id.startswith(prefix)
        }


class ScriptedEditor:
    """Stands for critic and editor; set as ``optimizer`` options by `installed`."""

    def __init__(self, write, *, criticise=lambda content: "It is too vague."):
        self.write = write
        self.criticise = criticise
        self.requests = []
        """(role, content) of every request."""

    async def __call__(self, messages, role):
        content = messages[-1]["content"]
        self.requests.append((role, content))
        answer = (self.criticise if role == "critic" else self.write)(content)
        return await answer if inspect.isawaitable(answer) else answer

    def count(self, role):
        return sum(each == role for each, _ in self.requests)


def current(content):
    """Return the prompt's text in a request to critic or editor."""
    return content.split("<current>\n")[1].split("\n</current>")[0]


def fenced(text):
    return f"```\n{text}\n```"


@pytest.fixture
def scripted(monkeypatch):
    """Return a callable that gives a `ScriptedEditor` a name, for the option ``function``."""
    module = types.ModuleType("scripted_editors")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def name_of(editor):
        name = f"editor{len(vars(module))}"
        setattr(module, name, editor)
        return f"{module.__name__}:{name}"

    return name_of

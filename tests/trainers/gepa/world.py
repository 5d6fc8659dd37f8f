"""A prompt phase of several agents whose scores depend on the words of their prompts."""

from __future__ import annotations

import hashlib
import random
import re
from contextvars import ContextVar

from agl_gepa import Gepa, GepaOptions
from agl_prompts import EditorOptions, Study

from agl_core.interfaces import AttemptRecord, PromptOutcome, TunedPrompt
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Choice,
    Failure,
    Losses,
    ModelCall,
    Reward,
    Rollout,
    Span,
    SpanKind,
    Task,
)

WORDS = ("short", "exact", "polite", "unit", "price", "item", "reason", "table")
_WORLD: ContextVar[World] = ContextVar("world")


def tasks(kind, n, *, seed=0):
    """Tasks that each need two of the words."""
    chosen = random.Random(f"{kind}-{n}-{seed}")
    return [
        Task(id=f"{kind}{i}", input=f"{kind} question {i}", expected=chosen.sample(WORDS, 2))
        for i in range(n)
    ]


def score(texts, task, asking):
    """The share of the task's words in all texts, with noise that depends on the asking.

    All scores are multiples of 1/1024, so that sums are exact and ties are ties.
    """
    said = set(re.findall(r"\w+", " ".join(texts[name] for name in sorted(texts))))
    right = sum(word in said for word in task.expected) / len(task.expected)
    key = f"{sorted(texts.items())}{task.id}{asking}".encode()
    return right * 0.75 + hashlib.sha256(key).digest()[0] / 1024


def words_editor(messages, number=0):
    """Add a word to the current text; the whole request decides which."""
    (message,) = messages
    current = re.search(r"```\n(.*?)\n```", message["content"], re.DOTALL)[1]
    digest = hashlib.sha256(f"{number}{message['content']}".encode()).digest()
    return f"I see.\n```\n{current} {WORDS[digest[0] % len(WORDS)]} n{digest[1]}-{digest[2]}\n```"


def answer(messages, role):
    """The editor of every test."""
    world = _WORLD.get()
    assert role == "editor"
    world.edits.append(messages)
    return world.editor(messages)


class World:
    """A phase whose rollouts and edits are plain functions, and which records all of them."""

    number, optimizer = 0, "gepa"

    def __init__(self, directory, *, texts=None, train=None, val=None, rollouts=150, seed=0):
        self.directory, self.rollouts, self.seed = directory, rollouts, seed
        self.prompts = {
            name: TunedPrompt(name=name, agents=(name,), text=text)
            for name, text in (texts or {"writer": "Answer."}).items()
        }
        self.train = train or tasks("train", 7)
        self.val = val or tasks("val", 5)
        self.losses = Losses()
        self.score, self.editor, self.failure = score, words_editor, lambda rollout: None
        self.ran, self.batches, self.edits = [], [], []

    async def run(self, asked):
        self.ran += asked
        self.batches.append(asked)
        return [self.outcome(each) for each in asked]

    def outcome(self, rollout):
        kind = self.failure(rollout)
        task, texts = rollout.task, rollout.candidate
        spans = [_call(at, name, texts[name], task) for at, name in enumerate(self.prompts)]
        value = 0.0 if kind else self.score(texts, task, rollout.asking)
        if kind is None:
            reward = Reward(value=value, why=f"needs {' and '.join(task.expected)}")
            spans.append(_span(len(spans), "reward", kind=SpanKind.REWARD, reward=reward))
        attempt = Attempt(
            id="a",
            rollout_id="r",
            fence=1,
            worker="w",
            sealed=True,
            status=AttemptStatus.FAILED if kind else AttemptStatus.SUCCEEDED,
            failure=Failure(kind=kind, message="out of order") if kind else None,
        )
        record = AttemptRecord(
            rollout=Rollout(id="r", task=task, run_id="run", mode="val"),
            attempt=attempt,
            spans=spans,
        )
        return PromptOutcome(record=record, score=value, failure=kind)

    def stage(self, text):
        pass

    @property
    def journal(self):
        return self.directory / "0-gepa.jsonl"

    def of(self, tasks):
        """The rollouts that ran on some tasks."""
        return [rollout for rollout in self.ran if rollout.task in tasks]

    @property
    def children(self):
        """The candidates that ran, in their order, without the incumbent."""
        found = []
        for rollout in self.ran[len(self.val) :]:
            if dict(rollout.candidate) not in found:
                found.append(dict(rollout.candidate))
        return [texts for texts in found if texts != self.incumbent]

    @property
    def incumbent(self):
        return {name: prompt.text for name, prompt in self.prompts.items()}

    def study(self, **options):
        editor = EditorOptions(function=f"{__name__}:answer")
        _WORLD.set(self)
        return Study(self, GepaOptions(editor=editor, **options))

    async def optimize(self, **options):
        """Run the optimiser on a study of this phase; return the best and the study."""
        study = self.study(**options)
        try:
            return await Gepa(study.options).optimize(study), study
        finally:
            await study.close()


def _call(at, agent, text, task):
    messages = [{"role": "system", "content": text}, {"role": "user", "content": task.input}]
    call = ModelCall(
        id=f"c{at}",
        rollout_id="r",
        attempt_id="a",
        agent=agent,
        messages=messages,
        choices=[Choice(text=f"{agent} on {task.id}", finish_reason="stop")],
        complete=True,
    )
    return _span(at, "chat", kind=SpanKind.LLM, agent=agent, call_id=call.id, call=call)


def _span(at, name, *, agent="writer", **fields):
    fixed = {"rollout_id": "r", "attempt_id": "a", "status": "ok"}
    return Span(id=f"s{at}", sequence=at, name=name, agent=agent, **fixed, **fields)

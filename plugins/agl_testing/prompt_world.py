"""A prompt phase with a known objective, for tests of prompt optimisers.

The agent ``writer`` answers questions about goods. Its scripted model uses a wanted word if the prompt
contains that word, or else by chance; a harmful word in the prompt spoils the answer. The best
prompt therefore contains all wanted words and no harmful one, and its score is known exactly.

Each rollout and each editor call is written to a file, so that a test can count them over several
processes. `scripted` is the editor and critic: an ``EditorOptions.function``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from math import fsum
from pathlib import Path
from typing import Any, Final

from agl_core.interfaces import (
    AttemptRecord,
    Candidate,
    PromptOutcome,
    PromptRollout,
    TunedPrompt,
)
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Choice,
    Failure,
    FailureKind,
    Losses,
    ModelCall,
    Reward,
    Rollout,
    Span,
    SpanKind,
    Task,
)

__all__ = [
    "HARMFUL",
    "INCUMBENT",
    "NEUTRAL",
    "SCRIPTED",
    "SLOW",
    "WANTED",
    "Interrupted",
    "PromptWorld",
    "WorldSettings",
    "scripted",
]

SCRIPTED: Final = "agl_testing.prompt_world:scripted"
"""The reference of `scripted`, for ``function`` in the options of an optimiser's editor."""
INCUMBENT: Final = "<prompt>Answer the question about {item}.</prompt>"
WANTED: Final = ("price", "unit", "greeting", "thanks")
HARMFUL: Final = ("slang", "shouting", "rhymes", "jokes", "riddles", "gossip", "threats", "puns")
NEUTRAL: Final = ("commas", "dashes", "colons", "tabs", "spaces", "capitals", "digits", "quotes")
SLOW: Final = "contemplation"
"""A word in a prompt with which attempts on hard tasks exceed their deadline."""
_CHANCE: Final = 0.25
"""Probability of a wanted word that the prompt does not contain."""
_HARM: Final = 0.25
"""Loss of score per harmful word."""
_HARD: Final = 0.5
"""Factor of the scores of hard tasks, which are every second task."""

AnswerFunction = Callable[["PromptWorld", Sequence[Mapping[str, Any]], str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSettings:
    """How a world differs from the plain one."""

    seed: int = 0
    rollouts: int = 200
    """Budget of the phase."""
    train: int = 8
    val: int = 8
    """Numbers of tasks."""
    flat: bool = False
    """Prompts have no effect: every word of an answer is chance."""
    faults: float = 0.0
    """Share of tasks on which the engine fails, also when they are repeated, if the prompt contains
    the first wanted word."""
    outage: bool = False
    """The engine fails in every rollout."""


class PromptWorld:
    """A `PromptPhase` over the known objective."""

    number = 0
    optimizer = "contract"

    def __init__(
        self, directory: Path, settings: WorldSettings, *, editor: AnswerFunction, crash: int = -1
    ) -> None:
        """Open a world, or open it again to resume its phase.

        Args:
            directory: Directory of the journal and of the file of finished rollouts.
            settings: The variant of the world.
            editor: Answers the calls of `scripted`.
            crash: Number of rollouts and editor calls before `on_crash` is called; -1 for never.
        """
        self.directory = directory
        self.settings = settings
        self.rollouts = settings.rollouts
        self.seed = settings.seed
        self.prompts = {
            "writer": TunedPrompt(
                name="writer", agents=("writer",), text=INCUMBENT, placeholders=frozenset({"item"})
            )
        }
        self.train = tasks("train", settings.train)
        self.val = tasks("val", settings.val)
        self.losses = Losses()
        self.stages: list[str] = []
        """Texts that the optimiser showed."""
        self.ran: list[PromptRollout] = []
        """Rollouts that were run by this object, the failed ones included."""
        self.faults = 0
        """Number of engine failures that were returned."""
        self.edits = 0
        """Number of editor calls, also of earlier processes."""
        self.events = 0
        """Number of rollouts and editor calls, also of earlier processes."""
        self.crash = crash
        self.on_crash: Callable[[], None] = _interrupt
        self._editor = editor
        self._finished: dict[str, str] = {}
        self._file = directory / "finished.jsonl"
        directory.mkdir(parents=True, exist_ok=True)
        self._load()

    async def run(self, asked: Sequence[PromptRollout]) -> list[PromptOutcome]:
        outcomes: list[PromptOutcome] = []
        for rollout in asked:
            content = _digest(dict(rollout.candidate), rollout.task.id, rollout.asking)
            known = self._finished.get(rollout.key)
            assert known in (None, content), f"the key {rollout.key!r} has two rollouts"
            if known is None:
                self._event(key=rollout.key, content=content)
                self._finished[rollout.key] = content
                self.ran.append(rollout)
            outcomes.append(self._outcome(rollout))
            await asyncio.sleep(0)
        return outcomes

    def stage(self, text: str) -> None:
        self.stages.append(text)

    async def answer(self, messages: Sequence[Mapping[str, Any]], role: str) -> str:
        """Answer one call of `scripted`."""
        self._event(role=role)
        self.edits += 1
        return self._editor(self, messages, role)

    @contextmanager
    def active(self) -> Generator[None, None, None]:
        """Let `scripted` call this world's editor."""
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)

    @property
    def finished(self) -> int:
        """Number of rollouts that ran, also in earlier processes."""
        return len(self._finished)

    def true_score(self, candidate: Candidate) -> float:
        """Return the expected score of a candidate on the validation tasks."""
        text = candidate.get("writer", INCUMBENT)
        wanted = fsum(self._probability(word, text) for word in WANTED) / len(WANTED)
        score = max(wanted - _HARM * _count(HARMFUL, text), 0.0)
        hard = 0.0 if SLOW in text else _HARD
        return score * fsum(hard if _is_hard(task) else 1.0 for task in self.val) / len(self.val)

    @property
    def optimum(self) -> float:
        """The highest expected score."""
        return self.true_score({"writer": " ".join(WANTED)})

    def uniform(self, *parts: Any) -> float:
        """Return a number in [0, 1) that depends on the seed and these parts."""
        return int(_digest(self.seed, *parts)[:12], 16) / 16**12

    def _probability(self, word: str, text: str) -> float:
        return 1.0 if word in text and not self.settings.flat else _CHANCE

    def _outcome(self, rollout: PromptRollout) -> PromptOutcome:
        text = rollout.candidate.get("writer", INCUMBENT)
        task, asking = rollout.task, rollout.asking
        failing = (
            WANTED[0] in text and self.uniform("fault", task.id, asking) < self.settings.faults
        )
        if failing or self.settings.outage:
            self.faults += 1
            failure = Failure(kind=FailureKind.ENGINE, message="the engine is overloaded")
            return _outcome(rollout, failure=failure)
        if SLOW in text and _is_hard(task):
            failure = Failure(kind=FailureKind.DEADLINE, message="the attempt ran out of time")
            return _outcome(rollout, failure=failure)
        words = [
            word
            for word in WANTED
            if self.uniform(word, task.id, asking) < self._probability(word, text)
        ]
        words += [] if self.settings.flat else [word for word in HARMFUL if word in text]
        return _outcome(rollout, words=words)

    def _event(self, **fields: Any) -> None:
        if self.events == self.crash:
            self.on_crash()
        with self._file.open("a") as stream:
            stream.write(json.dumps(fields) + "\n")
        self.events += 1

    def _load(self) -> None:
        if not self._file.exists():
            return
        for line in self._file.read_text().splitlines():
            row = json.loads(line)
            self.events += 1
            if "key" in row:
                assert row["key"] not in self._finished, f"rollout {row['key']!r} ran twice"
                self._finished[row["key"]] = row["content"]
            else:
                self.edits += 1


class Interrupted(BaseException):
    """The process was interrupted; no handler of errors catches it."""


_ACTIVE: ContextVar[PromptWorld] = ContextVar("active_prompt_world")


async def scripted(messages: Sequence[Mapping[str, Any]], role: str) -> str:
    """Answer as the editor of the world that is active; see `PromptWorld.active`."""
    return await _ACTIVE.get().answer(messages, role)


def tasks(split: str, count: int) -> list[Task]:
    """Return the tasks of a split; every second one is hard."""
    return [
        Task(
            id=f"{split}-{number}",
            input={"item": f"{split} item {number}", "hard": bool(number % 2)},
            expected=" ".join(WANTED),
        )
        for number in range(count)
    ]


def _interrupt() -> None:
    raise Interrupted


def _is_hard(task: Task) -> bool:
    return task.input["hard"]


def _count(words: Sequence[str], text: str) -> int:
    return sum(word in text for word in words)


def _outcome(
    rollout: PromptRollout, *, words: Sequence[str] = (), failure: Failure | None = None
) -> PromptOutcome:
    """Build the outcome of a rollout with one call and its reward, or with a failure."""
    task = rollout.task
    missing = [word for word in WANTED if word not in words]
    harmful = [word for word in HARMFUL if word in words]
    score = (len(WANTED) - len(missing)) / len(WANTED) - _HARM * len(harmful)
    score = max(score, 0.0) * (_HARD if _is_hard(task) else 1.0)
    reasons = [f"missing: {', '.join(missing)}"] if missing else []
    reasons += [f"harmful: {', '.join(harmful)}"] if harmful else []
    spans = [_call(rollout, " ".join(words))]
    if failure is None:
        reward = Reward(value=score, why="; ".join(reasons))
        spans.append(_span(rollout, 2, kind=SpanKind.REWARD, name="reward", reward=reward))
    status = AttemptStatus.SUCCEEDED if failure is None else AttemptStatus.FAILED
    attempt = Attempt(
        id=f"at-{rollout.key}",
        rollout_id=f"ro-{rollout.key}",
        fence=1,
        worker="world",
        status=status,
        failure=failure,
        output=" ".join(words),
        sealed=True,
    )
    record = AttemptRecord(
        rollout=Rollout(id=attempt.rollout_id, task=task, run_id="run", mode="val"),
        attempt=attempt,
        spans=spans,
    )
    return PromptOutcome(
        record=record,
        score=score if failure is None else 0.0,
        failure=failure.kind if failure else None,
    )


def _call(rollout: PromptRollout, answer: str) -> Span:
    item = rollout.task.input["item"]
    text = rollout.candidate.get("writer", INCUMBENT).replace("{item}", item)
    call = ModelCall(
        id=f"call-{rollout.key}",
        rollout_id=f"ro-{rollout.key}",
        attempt_id=f"at-{rollout.key}",
        agent="writer",
        messages=[
            {"role": "system", "content": text},
            {"role": "user", "content": f"Write about {item}."},
        ],
        choices=[Choice(text=answer, finish_reason="stop")],
        complete=True,
    )
    return _span(rollout, 1, kind=SpanKind.LLM, name="chat", call_id=call.id, call=call)


def _span(rollout: PromptRollout, number: int, **fields: Any) -> Span:
    return Span(
        id=f"sp-{rollout.key}-{number}",
        rollout_id=f"ro-{rollout.key}",
        attempt_id=f"at-{rollout.key}",
        sequence=number,
        agent="writer",
        status="ok",
        **fields,
    )


def _digest(*parts: Any) -> str:
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

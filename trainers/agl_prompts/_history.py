"""The versions of a run's tuned prompts, as the journals of its phases have them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from math import fsum
from pathlib import Path
from typing import Any, Final

import msgspec
from agl_stores import best_checkpoint

from agl_core.errors import ConfigError
from agl_core.training import read_state
from agl_core.types import Estimate
from agl_prompts._guards import digest_of
from agl_prompts._journal import read_events
from agl_prompts._scores import Scores

__all__ = ["FOLDER", "Entry", "PhaseHistory", "PromptHistory", "history_of", "read_history"]

FOLDER: Final = "prompts"
"""Folder of the journals in a run's directory."""
_FILE: Final = re.compile(r"(\d+)-(.+)\.jsonl")


class Entry(msgspec.Struct, kw_only=True):
    """A version in one phase."""

    version: int
    """Number of its texts in the run, from 1; equal texts in several phases have one number."""
    parent: int | None = None
    """Version that was edited; None for the version with which the phase begins."""
    why: str = ""
    changed: list[str] = []
    """Names of the prompts whose texts differ from the parent's."""
    score: Estimate | None = None
    """Mean over the validation tasks; None before all of them ran."""
    mean: float | None = None
    """Mean over the validation tasks that have run; None before the first one."""
    tasks: int = 0
    """Number of validation tasks that have run."""
    chosen: bool = False


class PhaseHistory(msgspec.Struct, kw_only=True):
    """The versions of one prompt phase, in the order in which they were proposed."""

    number: int
    optimizer: str
    entries: list[Entry] = []
    """At least the version with which the phase begins."""
    tasks: int = 0
    """Number of validation tasks."""
    refused: dict[str, int] = {}
    """Cause to number of refused candidates."""
    ended: bool = False
    """Whether the phase has chosen a version."""
    reason: str = ""
    """Why the phase ended before its budget was used; empty otherwise."""
    damaged: int = 0
    """Number of lines of the journal that cannot be read."""

    @property
    def best(self) -> Entry:
        """The chosen version; before the choice the first one with the highest score so far."""
        return max(self.entries, key=lambda each: (each.chosen, _mean(each)))


class PromptHistory(msgspec.Struct, kw_only=True):
    """All versions of a run's tuned prompts."""

    versions: list[dict[str, str]]
    """The texts of each version by the prompt's name; the first one has the number 1."""
    phases: list[PhaseHistory]
    best: int
    """Number of the version that the run chose; in a run that has not ended, the best so far.
    0 without versions."""

    def names(self) -> list[str]:
        """Return the names of the tuned prompts."""
        return sorted(self.versions[0])

    def texts(self, version: int) -> dict[str, str]:
        return self.versions[version - 1]

    def number_of(self, texts: Mapping[str, str]) -> int | None:
        """Return the number of the version with these texts; other names do not count."""
        wanted = {name: texts.get(name, text) for name, text in self.versions[0].items()}
        digests = [digest_of(each) for each in self.versions]
        found = digest_of(wanted)
        return digests.index(found) + 1 if found in digests else None

    def find(self, given: str) -> int:
        """Return the number of a version that a user names: a number, ``before`` or ``best``.

        Raises:
            ConfigError: there is no such version.
        """
        named = {"before": 1, "best": self.best}
        if given in named:
            return named[given]
        if given.isdecimal() and 1 <= int(given) <= len(self.versions):
            return int(given)
        raise ConfigError(
            f"There is no version {given!r} of the prompts: name one of 1 to {len(self.versions)}, "
            f"'before' or 'best'"
        )


def read_history(directory: Path) -> PromptHistory | None:
    """Read the journals of a run, which may be active or killed.

    Args:
        directory: The run's directory.

    Returns:
        None if the run has no journal with a version: no phase of it has tuned prompts so far.
    """
    phases = [_Phase(*found) for found in _journals(directory / FOLDER)]
    phases = [phase for phase in phases if phase.incumbent]
    if not phases:
        return None
    texts: dict[str, str] = {}
    for phase in reversed(phases):  # the first phase that tunes a prompt has its first text
        texts |= phase.texts[phase.incumbent]
    versions: dict[str, dict[str, str]] = {}
    histories: list[PhaseHistory] = []
    for phase in phases:
        histories.append(phase.history(texts, versions))
        texts = [*versions.values()][histories[-1].best.version - 1]
    return PromptHistory(
        versions=[*versions.values()], phases=histories, best=histories[-1].best.version
    )


def history_of(directory: Path) -> PromptHistory | None:
    """Return the versions of a run, of which ``best`` is the one in its best checkpoint.

    Raises:
        TrainingError: the state of the best checkpoint is damaged.
    """
    history = read_history(directory)
    checkpoint = best_checkpoint(directory) if history is not None else None
    if history is not None and checkpoint is not None:
        served = {name: prompt.template for name, prompt in read_state(checkpoint).prompts.items()}
        history.best = (history.number_of(served) if served else None) or history.best
    return history


def _journals(folder: Path) -> Iterator[tuple[Path, int, str]]:
    """Yield path, number and optimiser of every journal by number."""
    found = [(path, _FILE.fullmatch(path.name)) for path in folder.glob("*.jsonl")]
    named = [(path, int(match[1]), match[2]) for path, match in found if match is not None]
    yield from sorted(named, key=lambda each: each[1:])


class _Phase:
    """The events of one journal, by the digests of the candidates."""

    def __init__(self, path: Path, number: int, optimizer: str) -> None:
        self._number, self._optimizer = number, optimizer
        self.texts: dict[str, dict[str, str]] = {}
        self.incumbent = ""
        """Digest of the first candidate; empty without one."""
        self._made: dict[str, tuple[str, str]] = {}
        """Digest to the parent's digest and the reason."""
        self._scores: dict[str, dict[str, list[float]]] = {}
        """Digest to the scores of each validation task, which has none if it was lost."""
        self._refused: Counter[str] = Counter()
        self._chosen: dict[str, Any] = {}
        events, self._damaged = read_events(path)
        for event in events:
            try:
                self._add(event)
            except (KeyError, TypeError, AttributeError, ValueError):
                self._damaged += 1

    def _add(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "candidate":
                digest = str(event["digest"])
                texts = {str(name): str(text) for name, text in event["texts"].items()}
                self.texts[digest] = texts
                self._made[digest] = (str(event["parent"]), str(event["why"]))
                self.incumbent = self.incumbent or digest
            case "score" if event["split"] == "val":
                pairs = zip(event["tasks"], event["scores"], strict=True)
                tasks = self._scores.setdefault(event["digest"], {})
                for task, score in pairs:
                    kept = [] if score is None else [float(score)]
                    tasks.setdefault(str(task), []).extend(kept)
            case "refused":
                self._refused[str(event["cause"])] += 1
            case "chosen":
                self._chosen = {"digest": event["digest"], "reason": str(event["reason"])}
            case _:
                pass

    def history(self, texts: Mapping[str, str], known: dict[str, dict[str, str]]) -> PhaseHistory:
        """Return the phase's versions, and add them to the `known` ones by their digests.

        Args:
            texts: All tuned prompts of the run at the beginning of the phase.
            known: Digest to texts of each version of the run, in the order of their numbers.
        """
        numbers: dict[str, int] = {}
        for digest, own in self.texts.items():
            whole = {**texts, **own}
            key = digest_of(whole)
            known.setdefault(key, whole)
            numbers[digest] = [*known].index(key) + 1
        tasks = {task for scores in self._scores.values() for task in scores}
        return PhaseHistory(
            number=self._number,
            optimizer=self._optimizer,
            entries=[self._entry(digest, numbers, len(tasks)) for digest in self.texts],
            tasks=len(tasks),
            refused=dict(self._refused),
            ended=bool(self._chosen),
            reason=self._chosen.get("reason", ""),
            damaged=self._damaged,
        )

    def _entry(self, digest: str, numbers: Mapping[str, int], tasks: int) -> Entry:
        parent, why = self._made[digest]
        before = self.texts.get(parent, {})
        scores = self._scores.get(digest, {})
        means = [fsum(each) / len(each) for each in scores.values() if each]
        counts = len(scores) == tasks and 2 * len(means) >= tasks
        return Entry(
            version=numbers[digest],
            parent=numbers.get(parent),
            why=why,
            changed=[name for name, text in self.texts[digest].items() if text != before.get(name)]
            if parent
            else [],
            score=Scores.estimate_of(means) if counts else None,
            mean=fsum(means) / len(means) if means else None,
            tasks=len(scores),
            chosen=self._chosen.get("digest") == digest,
        )


def _mean(entry: Entry) -> float:
    return entry.score.mean if entry.score is not None else float("-inf")

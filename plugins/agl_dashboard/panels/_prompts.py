"""The page of tuned prompts: versions as a tree, scores, differences word by word."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final, Literal, cast

from agl_core.types import PromptTemplate
from agl_dashboard._panel import Page, PlainAnswer, View
from agl_dashboard._rows import rows_file, rows_kind
from agl_dashboard._text import visible

_WORD: Final = re.compile(r"\s+|\w+|[^\w\s]")
_MOST_WORDS: Final = 6000
_MOST_OF_A_FILE: Final = 64 << 20
_DEEPEST: Final = 12


@dataclass(slots=True, kw_only=True)
class PromptVersion:
    """One candidate of a prompt phase."""

    digest: str
    texts: Mapping[str, str]
    parent: str
    why: str
    depth: int = 0
    scores: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Newest score by split."""

    @property
    def best(self) -> float | None:
        for split in ("val", "train"):
            mean = self.scores.get(split, {}).get("mean")
            if isinstance(mean, (int, float)):
                return float(mean)
        return None


@dataclass(slots=True, kw_only=True)
class Phase:
    """A journal of prompt tuning."""

    name: str
    versions: dict[str, PromptVersion] = field(default_factory=dict[str, PromptVersion])
    chosen: str = ""
    refused: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    damaged: int = 0

    def take(self, event: Mapping[str, Any]) -> None:
        """Take over one event of the journal."""
        kind, digest = event.get("event"), str(event.get("digest", ""))
        if kind == "candidate" and isinstance(event.get("texts"), dict):
            texts = {str(name): str(text) for name, text in event["texts"].items()}
            self.versions[digest] = PromptVersion(
                digest=digest,
                texts=texts,
                parent=str(event.get("parent") or ""),
                why=str(event.get("why") or ""),
            )
        elif kind == "score" and digest in self.versions:
            self.versions[digest].scores[str(event.get("split"))] = event
        elif kind == "chosen":
            self.chosen = digest
        elif kind == "refused":
            self.refused.append(event)

    def ordered(self) -> list[PromptVersion]:
        """Return the versions as lines of a tree, with their depths."""
        children: dict[str, list[PromptVersion]] = defaultdict(list)
        for each in self.versions.values():
            parent = each.parent if each.parent in self.versions else ""
            children["" if each.parent == each.digest else parent].append(each)
        found: list[PromptVersion] = []
        seen: set[str] = set()
        stack = [(each, 0) for each in reversed(children[""])]
        while stack:
            version, depth = stack.pop()
            if version.digest in seen:
                continue
            seen.add(version.digest)
            version.depth = min(depth, _DEEPEST)
            found.append(version)
            stack += [(each, depth + 1) for each in reversed(children[version.digest])]
        return found


class PromptsPanel:
    """Versions of tuned prompts; without tuning, the prompts of the run."""

    title = "Prompts"
    order = 50
    scope: Literal["all", "run"] = "run"

    async def page(self, view: View) -> Page | PlainAnswer:
        directory = view.run.directory
        phases = await asyncio.to_thread(read_phases, directory) if directory else []
        wanted = view.query.get("phase", "")
        phase = next(
            (each for each in phases if each.name == wanted), phases[0] if phases else None
        )
        kind = rows_kind(view.rest, "prompts")
        if kind is not None:
            rows = _rows(phase) if phase is not None else _texts(await _published(view))
            return rows_file("prompts", kind, rows)
        version = self._chosen(view, phase)
        parent = phase.versions.get(version.parent) if phase and version else None
        texts = version.texts if version else {}
        body = view.template(
            "prompts.html",
            view=view,
            phases=phases,
            phase=phase,
            versions=phase.ordered() if phase else [],
            version=version,
            parent=parent,
            changed={
                name: differences(parent.texts.get(name, "") if parent else text, text)
                for name, text in texts.items()
            },
            published=await _published(view) if phase is None else {},
        )
        return Page(title="Prompts", body=body)

    def _chosen(self, view: View, phase: Phase | None) -> PromptVersion | None:
        if phase is None:
            return None
        wanted = view.query.get("version", "") or phase.chosen
        first = next(iter(phase.versions.values()), None)
        return phase.versions.get(wanted, first)


def make_panel() -> PromptsPanel:
    return PromptsPanel()


def _rows(phase: Phase) -> Iterator[dict[str, Any]]:
    for each in phase.ordered():
        yield {
            "phase": phase.name,
            "version": each.digest,
            "parent": each.parent,
            "chosen": each.digest == phase.chosen,
            "score": each.best,
            "scores": each.scores,
            "why": each.why,
            "texts": each.texts,
        }


def _texts(published: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for name, text in published.items():
        yield {"prompt": name, "text": text}


def read_phases(directory: Path) -> list[Phase]:
    """Return the journals of a run, newest first."""
    found: list[tuple[float, Phase]] = []
    for file in (directory / "prompts").glob("*.jsonl"):
        phase = Phase(name=file.stem)
        try:
            found.append((file.stat().st_mtime, phase))
            with file.open("rb") as stream:
                lines = stream.read(_MOST_OF_A_FILE).split(b"\n")
        except OSError:
            continue
        for line in lines[:-1]:
            _take(phase, line)
    return [phase for _, phase in sorted(found, key=lambda each: -each[0])]


def _take(phase: Phase, line: bytes) -> None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    if isinstance(event, dict):
        phase.take(cast("dict[str, Any]", event))
    elif line.strip():
        phase.damaged += 1


async def _published(view: View) -> dict[str, str]:
    if not view.run.readable:
        return {}
    resources = await view.run.store.resources()
    items = resources.items if resources is not None else {}
    return {name: item.template for name, item in items.items() if isinstance(item, PromptTemplate)}


def differences(before: str, after: str) -> list[tuple[Literal["", "ins", "del"], str]]:
    """Return a text in pieces: kept, added and removed, word by word.

    Texts of more than some thousand words are compared by line.
    """
    one, other = _WORD.findall(visible(before)), _WORD.findall(visible(after))
    if len(one) + len(other) > _MOST_WORDS:
        one, other = visible(before).splitlines(True), visible(after).splitlines(True)
    pieces: list[tuple[Literal["", "ins", "del"], str]] = []
    for tag, a, b, c, d in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if tag == "equal":
            pieces.append(("", "".join(one[a:b])))
            continue
        _add(pieces, "del", one[a:b])
        _add(pieces, "ins", other[c:d])
    return pieces


def _add(pieces: list[Any], kind: Literal["ins", "del"], words: Sequence[str]) -> None:
    if words:
        pieces.append((kind, "".join(words)))

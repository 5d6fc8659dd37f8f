"""Export of marked calls: conversations to imitate, and pairs of a better and a worse answer."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, cast

import msgspec
from agl_stores import StoreAddress

from agl_core.errors import ConfigError
from agl_core.interfaces import Store
from agl_core.text import exact_bytes, json_bytes
from agl_core.types import Choice, Losses, ModelCall
from agl_records._conversations import Message, answer_message, begins_inside, calls_by_id
from agl_records._marks import MARKS_FILE, Mark, Marks

MarksForm = Literal["sft", "preferences"]
"""The forms of exported marks."""

_PAGE: Final = 50
_CUT: Final = (None, "", "length", "content_filter", "abort")
"""How an answer ends that was cut off."""


class MarksSummary(msgspec.Struct, kw_only=True):
    """Counts of an export of marks; every mark is in a row or in exactly one count."""

    rows: int = 0
    marks: int = 0
    left_out: dict[str, int] = {}
    """Marks that are in no row, by cause."""
    output: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marked:
    """A mark with the call that it is of."""

    mark: Mark
    call: ModelCall

    @property
    def prompt(self) -> str:
        """Equal for calls of one agent with the same messages and tools."""
        asked = [self.call.known_as, self.call.messages, self.call.tools]
        return hashlib.sha256(exact_bytes(json.dumps(asked, sort_keys=True))).hexdigest()

    @property
    def correction(self) -> Message | None:
        text = self.mark.correction
        return {"role": "assistant", "content": text} if text else None

    def answer(self) -> Message | str:
        """Return the recorded answer, or why it is not a whole one."""
        found = [one for one in self.call.choices if one.index == self.mark.choice]
        if not found:
            return "no_answer"
        if found[0].finish_reason in _CUT or not self.call.complete:
            return "answer_cut"
        return _message(found[0], self.call.thinking_tags)

    def row(self, **fields: Any) -> dict[str, Any]:
        agent = self.call.known_as
        tools = {"tools": self.call.tools} if self.call.tools else {}
        return {**({"agent": agent} if agent else {}), **fields, **tools}


def _message(choice: Choice, tags: Sequence[str]) -> Message | str:
    inside = begins_inside(choice.text, tags)
    return "rendered_otherwise" if inside else answer_message(choice)


async def export_marks_from(
    store: Store, marks: Sequence[Mark], stream: IO[bytes], form: MarksForm
) -> MarksSummary:
    """Export marked calls of an open store as lines of JSON.

    Args:
        store: Open, at least for reading.
        marks: The marks.
        stream: Destination of the rows.
        form: ``sft``: conversations, of which the marked answer or its correction has weight 1;
            ``preferences``: pairs of answers to the same prompt, in the conversational form of TRL.

    Returns:
        What was exported, and what was not, by cause.
    """
    lost = Losses()
    found = [each async for each in _marked(store, marks, lost)]
    rows = _examples(found, lost) if form == "sft" else _pairs(found, lost)
    summary = MarksSummary(marks=len(marks))
    for row in rows:
        stream.write(json_bytes(row) + b"\n")
        summary.rows += 1
    summary.left_out = dict(sorted(lost.counts.items()))
    return summary


def marks_of(address: StoreAddress, given: Path | None = None) -> Marks:
    """Return the marks of a store: those of a file, or else those in the run's directory.

    Raises:
        ConfigError: there is no such file.
    """
    path = given or address.directory / MARKS_FILE
    if path.is_file():
        return Marks(path)
    if given is None and address.run is None and address.file is None:
        raise ConfigError(
            f"The marks of {address.url} are in the file that agl dashboard got as --marks FILE: "
            f"name it with --marks-file FILE"
        )
    raise ConfigError(
        f"There are no marks: no file {str(path)!r} exists. Mark calls in the browser, with "
        f"agl dashboard {address.directory} --write"
    )


async def _marked(
    store: Store, marks: Sequence[Mark], lost: Losses
) -> AsyncGenerator[_Marked, None]:
    """Yield the marks whose calls are in the store, in order of their rollouts."""
    by_rollout: dict[str, list[Mark]] = defaultdict(list)
    for mark in marks:
        by_rollout[mark.rollout].append(mark)
    ids = sorted(by_rollout)
    for start in range(0, len(ids), _PAGE):
        page = ids[start : start + _PAGE]
        records: dict[str, list[ModelCall]] = defaultdict(list)
        for span in await store.spans(page):
            if span.call is not None:
                records[span.attempt_id].append(span.call)
        calls = {attempt: calls_by_id(found) for attempt, found in records.items()}
        for mark in sorted(
            (mark for each in page for mark in by_rollout[each]), key=lambda mark: mark.at
        ):
            call = calls.get(mark.attempt, {}).get(mark.call)
            if call is None:
                lost.add("record_gone")
            else:
                yield _Marked(mark=mark, call=call)


def _examples(found: Sequence[_Marked], lost: Losses) -> Iterator[dict[str, Any]]:
    """Yield a conversation per correction and per good answer."""
    for each in found:
        answer = each.correction or _wanted(each)
        if isinstance(answer, str):
            lost.add(answer)
            continue
        context = [
            {**message, "weight": 0} if message.get("role") == "assistant" else message
            for message in each.call.messages
        ]
        yield each.row(messages=[*context, {**answer, "weight": 1}])


def _wanted(each: _Marked) -> Message | str:
    """Return the answer of a good mark, or why there is none to imitate."""
    if each.mark.verdict == "good":
        return each.answer()
    return "marked_bad" if each.mark.verdict == "bad" else "no_verdict"


def _pairs(found: Sequence[_Marked], lost: Losses) -> Iterator[dict[str, Any]]:
    """Yield each better answer with each worse one to the same prompt, and count marks in no pair."""
    prompts: dict[str, list[_Marked]] = defaultdict(list)
    for each in found:
        prompts[each.prompt].append(each)
    for group in prompts.values():
        yield from _Prompt(group).pairs(lost)


class _Prompt:
    """All marks of one prompt."""

    def __init__(self, group: Sequence[_Marked]) -> None:
        self._group = group
        self._answers = [each.answer() for each in group]
        self._better: list[tuple[int, Message]] = []
        """Marks by their place, with the answer that is to be preferred to bad ones."""
        for at, each in enumerate(group):
            better = each.correction or (self._answers[at] if each.mark.verdict == "good" else "")
            if not isinstance(better, str):
                self._better.append((at, better))

    def pairs(self, lost: Losses) -> Iterator[dict[str, Any]]:
        used: set[int] = set()
        alike: set[int] = set()
        seen: set[bytes] = set()
        for worse, each in enumerate(self._group):
            rejected = self._answers[worse]
            if isinstance(rejected, str):
                continue
            for better, chosen in self._better:
                if each.mark.verdict != "bad" and better != worse:
                    continue
                if better == worse and each.correction is None:
                    continue
                if chosen == rejected:
                    alike |= {better, worse}
                    continue
                used |= {better, worse}
                row = _pair(each, chosen, rejected)
                if (key := json_bytes(row)) not in seen:
                    seen.add(key)
                    yield row
        for at, each in enumerate(self._group):
            if at not in used:
                lost.add("answers_alike" if at in alike else self._cause(each, self._answers[at]))

    def _cause(self, each: _Marked, answer: Message | str) -> str:
        """Return why a mark is in no pair."""
        if each.correction is None and not each.mark.verdict:
            return "no_verdict"
        return answer if isinstance(answer, str) else "no_partner"


def _pair(each: _Marked, chosen: Message, rejected: Message) -> dict[str, Any]:
    prompt, one, other = (
        [*map(_plain, part)] for part in (each.call.messages, [chosen], [rejected])
    )
    return each.row(prompt=prompt, chosen=one, rejected=other)


def _plain(message: Mapping[str, Any]) -> Message:
    """Return a message with the arguments of tools as objects, as TRL's chat templates read them."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    return {**message, "tool_calls": [_decoded(call) for call in cast("list[Any]", calls)]}


def _decoded(call: Any) -> Any:
    fields = _object(call)
    function = _object(fields.get("function"))
    arguments = function.get("arguments")
    value: Any = None
    with suppress(ValueError, RecursionError):
        value = json.loads(arguments) if isinstance(arguments, str) else None
    if value is None or _object(value) != value:
        return call
    return {**fields, "function": {**function, "arguments": value}}


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}

"""Separation of thinking and text in a model's answer.

Reasoning models write their thinking in tags, ``<think>...</think>``, or their server returns it in
a separate field, ``reasoning`` or ``reasoning_content``. `split_thinking` and, for a streamed
answer, `ThinkParser` turn both into the same parts. The parts are unchanged pieces of the text;
tokens are not used.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from agl_core.errors import ConfigError

__all__ = ["DEFAULT_TAGS", "Part", "ThinkParser", "split_thinking", "tag_pair", "without_thinking"]

DEFAULT_TAGS: Final = ("think", "thinking")
"""Names of the tags that models write their thinking in."""


def tag_pair(tag: str) -> tuple[str, str]:
    """Return the opening and closing tag of one entry of `tags`.

    Raises:
        ConfigError: the entry is neither a name nor two different tags.
    """
    words = tag.split()
    if len(words) == 1 and not set(words[0]) & set("<>/`"):
        return f"<{words[0]}>", f"</{words[0]}>"
    if len(words) != 2 or words[0] == words[1] or "`" in tag:  # noqa: PLR2004
        raise ConfigError(
            f"Thinking tag {tag!r} is not one: give a name, as 'think' for <think>, or the opening "
            f"and the closing tag with a space between them, as '[THINK] [/THINK]'"
        )
    return words[0], words[1]


def _mentions(text: str, tags: Iterable[str]) -> bool:
    """Return whether any tag occurs; most answers have none and need no parsing."""
    return any(marker in text for tag in tags for marker in tag_pair(tag))


PartKind = Literal["thinking", "text"]


class Part(msgspec.Struct, frozen=True):
    """A part of an answer."""

    kind: PartKind
    text: str
    """Unchanged, including white space at its ends, but without the tags around it."""


@dataclass(slots=True)
class _Hold:
    """Thinking that may prove to be text, from the first possible closing tag on."""

    text: list[str] = field(default_factory=list[str])
    length: int = 0
    closed: tuple[int, int] | None = None
    """The last closing tag outside code; it is used if a nested opening tag is never closed."""
    in_code: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Closing tags inside code, which may be a fence that the model forgot to close."""


class ThinkParser:
    """Splits a streamed answer into thinking and text.

    A block extends from its opening tag to the matching closing tag; blocks of one tag may be
    nested, and the outermost is one part. A block that is never closed is thinking to the end. A
    closing tag before any opening tag ends thinking that began with the answer, as the chat
    template had opened it. Tags in Markdown code, fenced or between backticks on one line, are
    ignored. If a block would not end because of that, or because of a nested opening tag without an
    end, its last closing tag outside code ends it, or else the first one in code. Parts of only
    white space are left out.

    After `finish`, `parts` does not depend on the pieces in which the answer was fed.
    """

    def __init__(self, *, tags: Sequence[str] = DEFAULT_TAGS, opened: bool = False) -> None:
        """Begin an answer.

        Args:
            tags: Names, ``"think"`` for ``<think>`` and ``</think>``; or, for tags of another form,
                both tags with a space between them, ``"[THINK] [/THINK]"``.
            opened: Whether the prompt ends inside a thinking tag, so that the answer begins with
                thinking.

        Raises:
            ConfigError: a tag has neither form.
        """
        self._pairs = [tag_pair(tag) for tag in tags]
        markers = sorted({each for pair in self._pairs for each in pair}, key=len, reverse=True)
        self._markers = markers
        self._firsts = frozenset(marker[0] for marker in markers)
        self._longest = len(markers[0]) - 1 if markers else 0
        self._pattern = re.compile("|".join(map(re.escape, markers)) or r"(?!)")
        self._closers = frozenset(closer for _, closer in self._pairs)
        self._kind: PartKind = "thinking" if opened else "text"
        self._pair: tuple[str, str] | None = None
        """Tags of the open block; None if the prompt opened it."""
        self._depth = 1
        self._met = opened
        """Whether a block has begun before this point."""
        self._line = ""
        """The current line, from its beginning or from the last tag."""
        self._fresh = True
        """Whether `_line` begins at the beginning of a line."""
        self._sent = 0
        """Number of characters of `_line` that are already in a part."""
        self._fence = ""
        """The characters of the open code fence."""
        self._hold: _Hold | None = None
        self._reasoning: list[str] = []
        self._found: list[tuple[PartKind, list[str]]] = [(self._kind, [])]
        self._fresh_parts: list[Part] = []

    def feed(self, text: str = "", *, reasoning: str = "") -> list[Part]:
        """Take the next piece of content and of the reasoning field.

        Returns:
            The parts that have become certain. Text before a closing tag without an opening one has
            already been returned as text; in `parts` it is thinking.
        """
        if reasoning:
            self._reasoning.append(reasoning)
            self._fresh_parts.append(Part("thinking", reasoning))
        if text:
            self._line += text
            self._advance()
        return self._taken()

    def finish(self) -> list[Part]:
        """End the answer; return the parts that were not certain before."""
        self._advance(final=True)
        again = False
        while self._hold is not None:
            hold, self._hold = self._hold, None
            held = "".join(hold.text)
            # From the second round on the last one is used, so that the loop always ends.
            in_code = hold.in_code[-1 if again else 0] if hold.in_code else (len(held), len(held))
            start, end = hold.closed or in_code
            self._emit(held[:start])
            self._switch("text")
            self._line, again = held[end:], True
            self._advance(final=True)
        return self._taken()

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, the reasoning field first.

        Before `finish`, text that is not certain yet counts as thinking.
        """
        whole = [Part("thinking", "".join(self._reasoning))]
        whole += [Part(kind, "".join(pieces)) for kind, pieces in self._found]
        if self._hold is not None:
            whole[-1] = Part("thinking", whole[-1].text + "".join(self._hold.text))
        return tuple(part for part in whole if part.text and not part.text.isspace())

    def _taken(self) -> list[Part]:
        taken, self._fresh_parts = self._fresh_parts, []
        return taken

    def _advance(self, *, final: bool = False) -> None:
        """Parse `_line` line by line; the last line may be incomplete."""
        text, at = self._line, 0
        while at < len(text):
            end = text.find("\n", at) + 1
            whole = final or end > 0
            self._line = text[at : end or len(text)]
            switched = self._scan(whole=whole)
            if switched is None and not whole:
                self._forget()
                return
            at += len(self._line) if switched is None else switched
            self._sent, self._fresh = 0, True
        self._line = ""

    def _forget(self) -> None:
        """Drop the beginning of a line that can no longer open or close code."""
        opens = self._fresh and self._line.lstrip(" ").startswith("~~~")
        if not opens and "`" not in self._line and self._line[: self._sent].strip(" ~"):
            self._line, self._sent, self._fresh = self._line[self._sent :], 0, False

    def _scan(self, *, whole: bool) -> int | None:
        """Scan the line further; return the end of a tag that began or ended a block, if any."""
        line = self._line
        fenced = self._fenced() if whole else self._may_be_fenced()
        spans: list[tuple[int, int]] | None = None
        ticks = line.find("`")
        met = self._sent
        for match in self._pattern.finditer(line, self._sent):
            at = match.start()
            if not whole and (fenced or -1 < ticks < at):
                self._send(at)
                return None
            if spans is None:
                spans = code_spans(line) if whole and not fenced else []
            if self._meet(match, in_code=fenced or inside(at, spans)):
                return match.end()
            met = match.end()
        self._send(len(line) - (0 if whole else self._unsure(met)))
        return None

    def _unsure(self, met: int) -> int:
        """Return the length of the line's end that may begin another tag, after the last one."""
        end = self._line[max(met, len(self._line) - self._longest) :]
        for at, character in enumerate(end):
            if character in self._firsts and any(m.startswith(end[at:]) for m in self._markers):
                return len(end) - at
        return 0

    def _may_be_fenced(self) -> bool:
        begins = self._line.lstrip(" ")[:1] if self._fresh else ""
        return bool(self._fence) or begins in ("`", "~")

    def _fenced(self) -> bool:
        """Return whether the line belongs to a fenced code block, which it may open or close."""
        if self._fence:
            if self._fresh and closes_fence(self._line, self._fence):
                self._fence = ""
            return True
        opening = OPENING_FENCE.match(self._line) if self._fresh else None
        self._fence = opening[1] if opening is not None else ""
        return opening is not None

    def _meet(self, match: re.Match[str], *, in_code: bool) -> bool:
        """Handle a tag; return whether it began or ended a block."""
        marker, at = match[0], match.start()
        if self._kind == "text":
            return not in_code and self._meet_in_text(marker, at)
        if self._pair is None and not in_code and self._begins_again(marker, at):
            return True
        closes = marker in self._closers if self._pair is None else marker == self._pair[1]
        if not closes:
            if not in_code and self._pair is not None and marker == self._pair[0]:
                self._depth += 1
            return False
        if in_code or self._depth > 1:
            self._depth -= not in_code
            self._may_close(at, len(marker), in_code=in_code)
            return False
        self._send(at)
        if self._hold is not None:
            held, self._hold = "".join(self._hold.text), None
            self._emit(held)
        self._switch("text")
        return True

    def _meet_in_text(self, marker: str, at: int) -> bool:
        pair = next((pair for pair in self._pairs if pair[0] == marker), None)
        if pair is None and self._met:
            return False
        self._send(at)
        if pair is None:
            self._found = [("thinking", [text for _, pieces in self._found for text in pieces])]
            self._switch("text")
        else:
            self._switch("thinking", pair)
        return True

    def _begins_again(self, marker: str, at: int) -> bool:
        """Handle an opening tag that repeats the prompt's; return whether it is one."""
        pair = next((pair for pair in self._pairs if pair[0] == marker), None)
        if pair is None or "".join(self._found[-1][1]).strip() or self._line[:at].strip():
            return False
        self._switch("thinking", pair)
        return True

    def _may_close(self, at: int, length: int, *, in_code: bool) -> None:
        self._send(at)
        hold = self._hold = self._hold or _Hold()
        place = (hold.length, hold.length + length)
        if not in_code:
            hold.closed = place
        else:
            hold.in_code.append(place)

    def _switch(self, kind: PartKind, pair: tuple[str, str] | None = None) -> None:
        self._kind, self._pair, self._depth = kind, pair, 1
        self._met = True
        self._fence = ""
        self._sent, self._fresh = 0, True
        self._found.append((kind, []))

    def _send(self, upto: int) -> None:
        self._emit(self._line[self._sent : upto])
        self._sent = max(self._sent, upto)

    def _emit(self, text: str) -> None:
        if not text:
            return
        if self._hold is not None:
            self._hold.text.append(text)
            self._hold.length += len(text)
            return
        self._found[-1][1].append(text)
        self._fresh_parts.append(Part(self._kind, text))


OPENING_FENCE: Final = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_INDENT: Final = 3
"""Most spaces before a fence."""
_TICKS: Final = re.compile(r"`+")


def closes_fence(line: str, fence: str) -> bool:
    """Return whether the line closes a block that `fence` opened."""
    bare = line.strip()
    indent = len(line) - len(line.lstrip(" "))
    return len(bare) >= len(fence) and set(bare) == {fence[0]} and indent <= _INDENT


def code_spans(line: str) -> list[tuple[int, int]]:
    """Return ranges of inline code on a line: from a run of backticks to the next equally long."""
    if "`" not in line:
        return []
    runs = [(match.start(), match.end()) for match in _TICKS.finditer(line)]
    of_length: dict[int, list[int]] = defaultdict(list)
    for position, (start, end) in enumerate(runs):
        of_length[end - start].append(position)
    spans: list[tuple[int, int]] = []
    position = 0
    while position < len(runs):
        start, end = runs[position]
        alike = of_length[end - start]
        following = bisect_right(alike, position)
        if following < len(alike):
            position = alike[following]
            spans.append((start, runs[position][1]))
        position += 1
    return spans


def inside(at: int, spans: Sequence[tuple[int, int]]) -> bool:
    place = bisect_right(spans, (at, at)) - 1
    return place >= 0 and spans[place][0] < at < spans[place][1]


def split_thinking(
    text: str, *, reasoning: str = "", tags: Sequence[str] = DEFAULT_TAGS, opened: bool = False
) -> tuple[Part, ...]:
    """Split a whole answer into its parts, in order; see `ThinkParser`."""
    if not opened and not reasoning and not _mentions(text, tags):
        return (Part("text", text),) if text and not text.isspace() else ()
    parser = ThinkParser(tags=tags, opened=opened)
    parser.feed(text, reasoning=reasoning)
    parser.finish()
    return parser.parts


def without_thinking(text: str, *, tags: Sequence[str] = DEFAULT_TAGS) -> str:
    """Return the text of an answer without its thinking."""
    if not _mentions(text, tags):
        return text
    return "".join(part.text for part in split_thinking(text, tags=tags) if part.kind == "text")

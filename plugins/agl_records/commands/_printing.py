"""Recorded texts for a terminal: control characters escaped, right-to-left text isolated."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

_EXCERPT: Final = 72
_SHOWN: Final = 20_000
"""Characters shown of one text; ``--json`` has the rest."""
_KEPT: Final = "\n\t\u200c\u200d"
"""Line ends, and the joiners that emoji and several scripts are written with."""
_ISOLATE: Final = "\u2068"
_END_ISOLATE: Final = "\u2069"


def printable(text: str) -> str:
    """Escape what terminals interpret: control characters, lone surrogates, text direction."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_printable, text))


def _printable(char: str) -> str:
    if char.isprintable() or char in _KEPT or unicodedata.category(char) == "Zs":
        return char
    return char.encode("unicode_escape").decode()


def excerpt(text: str) -> str:
    """Return a text as one printable line, cut to a readable length."""
    flat = " ".join(printable(text[: _EXCERPT * 4]).split())
    return isolated(flat if len(flat) <= _EXCERPT else f"{flat[: _EXCERPT - 3]}...")


def isolated(line: str) -> str:
    """Isolate a line with right-to-left text, so that it does not move what is around it."""
    if line.isascii() or not any(unicodedata.bidirectional(char) in ("R", "AL") for char in line):
        return line
    return f"{_ISOLATE}{line}{_END_ISOLATE}"


@dataclass(frozen=True, slots=True)
class Said:
    """A text after the name of who said it, wrapped to the width that is left for it.

    Each wrapped line is isolated by itself: terminals apply direction line by line.
    """

    who: str
    text: str
    style: str = ""
    calls: Sequence[str] = ()
    """Tool calls, one below the other."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text  # noqa: PLC0415

        shown, more = self.text[:_SHOWN], len(self.text) - _SHOWN
        line = Text(f"{printable(self.who)}: ", style="bold", tab_size=4)
        line.append(printable(shown), style=f"not bold {self.style}")
        if more > 0:
            line.append(f"\n... {more:,} more characters (--json has them)", style="dim")
        for call in self.calls:
            line.append(f"\n-> {printable(call[:_SHOWN])}", style="not bold")
        for part in line.wrap(console, options.max_width):
            part.rstrip()
            alone = isolated(part.plain) == part.plain
            yield part if alone else Text(_ISOLATE).append_text(part).append(_END_ISOLATE)

"""``agl prompts``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from agl_stores import run_directory

from agl_core.cli.group import debug_option, json_option
from agl_core.cli.output import STDOUT, console, write_json
from agl_core.errors import ConfigError
from agl_core.text import escaped
from agl_core.types.run import counts
from agl_prompts._diff import MARKS, difference
from agl_prompts._history import Entry, PhaseHistory, PromptHistory, history_of

if TYPE_CHECKING:
    from rich.console import Console

_STYLES: Final = {"same": "", "removed": "red", "added": "green"}


@click.command(short_help="Show the versions of a run's tuned prompts.")
@click.argument("run")
@click.argument("name", required=False)
@click.option(
    "--diff",
    "pair",
    nargs=2,
    metavar="A B",
    help="Show the differences from version A to version B; before and best are versions too.",
)
@json_option
@debug_option
def command(
    run: str, name: str | None, pair: tuple[str, str] | None, json_file: str | None
) -> None:
    """Show the versions of a run's tuned prompts, their scores, and their differences.

    RUN is a run's directory, or the name of one in agl_runs; the run may be active. The score of a
    version is the mean over the validation tasks with its 95 % interval.

    With NAME, only the versions of this prompt are shown, and what changed from the first text to
    the chosen one, word by word: [-removed-] and {+added+}.
    """
    directory = run_directory(run)
    history = history_of(directory)
    if history is not None and name is not None and name not in history.names():
        raise ConfigError(
            f"Run {str(directory)!r} tuned no prompt {name!r}; it tuned {', '.join(history.names())}"
        )
    if json_file is not None:
        write_json(history or PromptHistory(versions=[], phases=[], best=0), json_file)
    if json_file == STDOUT:
        return
    target = console()
    if history is None:
        _say(target, f"Run {str(directory)!r} has tuned no prompts: no prompt phase has begun")
        return
    names = [name] if name is not None else history.names()
    if pair is None or name is not None:
        show_versions(target, history, names)
    if pair is not None or name is not None:
        first, second = (history.find(each) for each in pair or ("before", "best"))
        for each in names:
            show_difference(target, history, each, (first, second))


def show_versions(target: Console, history: PromptHistory, names: Sequence[str]) -> None:
    """Print a table per phase, with the versions that change one of the prompts."""
    from rich.table import Table  # noqa: PLC0415

    for phase in history.phases:
        head = f"phase {phase.number}: {phase.optimizer}, {phase.tasks} validation tasks"
        _say(target, head if phase.ended else f"{head}, has not ended")
        table = Table(box=None, pad_edge=False)
        for column in ("", "score", "n", "parent", "changed", "", "why"):
            table.add_column(column, no_wrap=column in ("score", ""))
        for entry in phase.entries:
            if entry.parent is None or entry.chosen or set(names) & set(entry.changed):
                table.add_row(*_row(phase, entry))
        target.print(table)
        for line in _remarks(phase):
            _say(target, line)
    _say(target, f"best: version {history.best}")


def show_difference(
    target: Console, history: PromptHistory, name: str, pair: tuple[int, int]
) -> None:
    """Print the text of a prompt in one version with its changes to another."""
    from rich.text import Text  # noqa: PLC0415

    before, after = (history.texts(version)[name] for version in pair)
    _say(target, f"{name}, version {pair[0]} to {pair[1]}:")
    if before == after:
        _say(target, "(the texts are equal)")
    shown = Text()
    for piece in difference(escaped(before), escaped(after)):
        begin, end = MARKS[piece.kind]
        shown.append(f"{begin}{piece.text}{end}", style=_STYLES[piece.kind])
    target.print(shown, soft_wrap=True)


def _row(phase: PhaseHistory, entry: Entry) -> list[Any]:
    from rich.text import Text  # noqa: PLC0415

    score, mean = entry.score, f"{entry.mean:.3f}" if entry.mean is not None else ""
    marks = [
        "before" if entry.parent is None else "",
        "chosen" if entry.chosen else "",
        "best so far" if not phase.ended and entry is phase.best else "",
    ]
    cells = [
        str(entry.version),
        f"{mean} [{score.low:.3f}, {score.high:.3f}]" if score is not None else mean,
        str(score.n) if score is not None else f"{entry.tasks} of {phase.tasks}",
        str(entry.parent or ""),
        ", ".join(entry.changed),
        ", ".join(filter(None, marks)),
        " ".join(entry.why.split()),
    ]
    style = "bold" if entry.chosen else ""
    return [Text(escaped(cell), style=style) for cell in cells]


def _remarks(phase: PhaseHistory) -> list[str]:
    found = {
        f"refused {counts(phase.refused)}": phase.refused,
        f"ended early: {' '.join(phase.reason.split())}": phase.reason,
        f"{phase.damaged} lines of the journal cannot be read": phase.damaged,
    }
    return [line for line, shown in found.items() if shown]


def _say(target: Console, text: str) -> None:
    target.print(escaped(text), markup=False, soft_wrap=True)

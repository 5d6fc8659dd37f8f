"""``agl doctor``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from agl_core.cli.group import (
    CliState,
    debug_option,
    importable,
    json_option,
    plugin_option,
    set_option,
)
from agl_core.cli.output import STDOUT, console, supports_unicode, write_json

if TYPE_CHECKING:
    from rich.console import Console

    from agl_core.types import Finding
    from agl_doctor._diagnose import Diagnosis

_STYLES: Final = {"ok": "green", "not checked": "cyan", "warning": "yellow", "error": "bold red"}
_WIDTH: Final = max(map(len, _STYLES))


@click.command()
@click.argument("config_file", metavar="CONFIG")
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Try this many of the training tasks.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=2),
    help="Attempts per task; the group's size, at most 4, when left out.",
)
@set_option
@plugin_option
@json_option
@debug_option
@click.pass_obj
def command(
    state: CliState,
    *,
    config_file: str,
    tasks: int,
    samples: int | None,
    overrides: tuple[str, ...],
    json_file: str | None,
) -> int:
    """Run a few tasks before training and report what is wrong.

    Nothing is trained. The findings are about token ids and whether they decode to the text, the
    agents that called models and would be trained, rewards and how they differ, lengths, breaks in
    conversations, failures, and the pitfalls of frameworks. The run's folder doctor has the records.

    CONFIG is a configuration (.toml, .yaml, .json). The exit status is 1 when anything is an error.
    """
    from agl_core.app import (  # noqa: PLC0415
        App,
        only_run,
        run_blocking,
    )
    from agl_core.serving import withheld_key  # noqa: PLC0415
    from agl_doctor._diagnose import diagnose  # noqa: PLC0415

    config = state.config(config_file, overrides)
    plugins = state.plugins(config.plugins)
    with only_run(config.name) as whole, withheld_key(), importable(Path()):
        app = App(config, plugins=plugins)
        diagnosis = run_blocking(whole(diagnose(app, tasks=tasks, samples=samples)))
    show(console(stderr=json_file == STDOUT), diagnosis, tracebacks=state.debug)
    if json_file is not None:
        write_json(diagnosis, json_file)
    return 1 if diagnosis.failed else 0


def show(target: Console, diagnosis: Diagnosis, *, tracebacks: bool) -> None:
    """Print the findings: a table on a terminal, else plain lines."""

    def say(text: str) -> None:
        target.print(text, markup=False, soft_wrap=True)

    say(
        f"run {diagnosis.run_id}: tried {diagnosis.tasks} tasks, {diagnosis.samples} attempts each, "
        f"{diagnosis.calls} model calls, {diagnosis.wall_s:.1f} s; nothing was trained"
    )
    if target.is_terminal:
        _table(target, diagnosis.findings)
    else:
        for finding in diagnosis.findings:
            say(
                f"{finding.severity:<{_WIDTH}}  {finding.check}: {' '.join(finding.measured.split())}"
            )
            if finding.fix:
                say(f"{'':<{_WIDTH}}  fix: {finding.fix}")
    counts = Counter(finding.severity for finding in diagnosis.findings)
    say(", ".join(f"{counts[severity]} {severity}" for severity in _STYLES if counts[severity]))
    say(f"records: agl trace {diagnosis.directory}")
    for finding in diagnosis.findings if tracebacks else ():
        if finding.figures.get("traceback"):
            say(f"\n{finding.figures['traceback']}")


def _table(target: Console, findings: Sequence[Finding]) -> None:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    lines = box.SIMPLE if supports_unicode(target) else box.ASCII
    table = Table("", "check", "measured", box=lines, pad_edge=False)
    for finding in findings:
        style = _STYLES[finding.severity]
        measured = Text(" ".join(finding.measured.split()))
        if finding.fix:
            measured.append("\nfix: ", style="bold")
            measured.append(finding.fix)
        table.add_row(Text(finding.severity, style=style), Text(finding.check), measured)
    target.print(table)

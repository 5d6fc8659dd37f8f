"""``agl init``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from agl_core.cli.group import CliState, debug_option
from agl_core.errors import ConfigError, pip_line
from agl_core.plugins import Registration, unmet_extra
from agl_init._files import RUN, TASKS, TRAINING, Choices, takes_task, texts
from agl_init._frameworks import integrations_of
from agl_init._program import Program, read_program

_MODEL: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Model to write if no plugin offers weights by name."""


@click.command(short_help="Write a run file, tasks and a reward for a program that works.")
@click.argument("program", metavar="PROGRAM")
@click.option(
    "--model",
    metavar="NAME",
    help="The weights to begin with: a directory, a name on the Hugging Face hub, or one that "
    "agl fetch takes. The last of these when left out.",
)
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@debug_option
@click.pass_obj
def command(state: CliState, *, program: str, model: str | None, force: bool) -> None:
    """Write the files that a working program needs for training: run.toml, tasks and a reward.

    PROGRAM is package.module:function or file.py:function, a function that answers one question.
    Its source is read, not run. The files go beside file.py, or into the working
    directory for a module.
    """
    found = read_program(program)
    folder = found.file.parent if found.by_file else Path.cwd()
    integrations = integrations_of(found.imports, state.plugins())
    naming = tuple(each.summary for each in integrations if each.summary)
    weights = model or next(iter(state.plugins().registry("models").names()), _MODEL)
    files = texts(found, Choices(model=_relative(weights, folder), naming=naming))
    _write({folder / name: text for name, text in files.items()}, found, force=force)
    _report(found, folder, integrations)


def _relative(model: str, folder: Path) -> str:
    """Return a directory as the run file refers to it, independent of the working directory."""
    path = Path(model).expanduser()
    if not path.is_dir():
        return model
    try:
        return f"./{path.resolve().relative_to(folder.resolve()).as_posix()}"
    except ValueError:
        return str(path.resolve())


def _write(files: dict[Path, str], program: Program, *, force: bool) -> None:
    """Write all files, or none if one of them must not be overwritten.

    Raises:
        ConfigError: a file exists, is the program itself, or cannot be written.
    """
    if program.file in [file.resolve() for file in files]:
        raise ConfigError(
            f"agl init would write {str(program.file)!r}, which is the program itself: give the "
            f"program's file another name than {program.file.name!r}"
        )
    existing = [file.name for file in files if file.exists()]
    if existing and not force:
        folder = next(iter(files)).parent
        raise ConfigError(
            f"{str(folder)!r} already holds {', '.join(existing)}: move what is there, or "
            f"overwrite it with --force"
        )
    for file, text in files.items():
        try:
            file.write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise ConfigError(f"Cannot write {str(file)!r}: {error.strerror}") from error


def _report(program: Program, folder: Path, integrations: Sequence[Registration]) -> None:
    for name, what in (
        (RUN, "the run: program, agents, model, tasks, reward, algorithm"),
        (TASKS, "two tasks: put yours there"),
        (TRAINING, "the reward" if takes_task(program) else "the function of a task, the reward"),
    ):
        click.echo(f"wrote {_shown(folder / name)}  {what}")
    for integration in integrations:
        click.echo(f"framework: {integration.summary or integration.name}")
        if integration.extra is not None and unmet_extra(integration):
            click.echo(f"  it needs: {pip_line(integration.extra)}")
    if not integrations:
        click.echo("framework: none of the known ones; name agents with agl.agent_scope(name)")
    if program.agents:
        click.echo(f"names in the source that may be agents: {', '.join(program.agents)}")
    click.echo(f"Next: put your tasks into {_shown(folder / TASKS)}, then")
    click.echo(f"  agl doctor {_shell(_shown(folder / RUN))}")


def _shown(file: Path) -> str:
    try:
        return str(file.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        return str(file)


def _shell(text: str) -> str:
    return text if re.fullmatch(r"[\w./\\:-]+", text) else f'"{text}"'

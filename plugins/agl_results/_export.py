"""``agl export``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from agl_core.cli.group import CliState, debug_option, plugin_option
from agl_core.cli.output import STDOUT
from agl_core.errors import ConfigError
from agl_core.text import replaced, url_quoted
from agl_core.types import PromptTemplate

_REPLACED: Final = "replaced"
"""Folder of the texts that captured prompts replace."""


@click.command(short_help="Write trained weights and tuned prompts to files.")
@click.argument("run")
@click.argument("directory", required=False, type=click.Path(file_okay=False))
@click.option(
    "--format",
    "weights_format",
    type=click.Choice(["hf", "adapter", "gguf"]),
    default="hf",
    show_default=True,
    help="hf: a Hugging Face directory per policy, a LoRA adapter merged; adapter: the LoRA adapter "
    "alone, in PEFT's format; gguf: a file per policy for llama.cpp.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Dtype of the matrices in a GGUF file; that of the trained weights without it.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Write only this policy's weights; repeatable.",
)
@click.option(
    "--prompts",
    "prompts_directory",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Write a text file per tuned prompt to this directory.",
)
@click.option(
    "--marks",
    "form",
    type=click.Choice(["sft", "preferences"]),
    metavar="FORM",
    help="Write the calls that were marked in the dashboard. sft: conversations for the algorithm "
    "sft; preferences: pairs of a better and a worse answer to the same prompt.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    default=STDOUT,
    metavar="FILE",
    help="Write the marked calls to this file; standard output without it.",
)
@click.option(
    "--marks-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The marks; marks.db in the run's directory without it.",
)
@click.option("--force", is_flag=True, help="Overwrite files that differ.")
@plugin_option
@debug_option
@click.pass_obj
def command(
    state: CliState,
    *,
    run: str,
    directory: str | None,
    prompts_directory: str | None,
    force: bool,
    **options: Any,
) -> None:
    """Write what a run has learned to files, or what people have marked in it.

    RUN is a run's directory, the name of a run in agl_runs, or a checkpoint. A run's best
    checkpoint is exported; if the run has not ended, its newest one. With --marks, RUN may also be
    the address of a store.

    With DIRECTORY, it receives weights and tokenizer of each trained policy, ready to serve. Merged
    weights that are equal to the base model's, and adapters that no update has changed, are an
    error. With --prompts, each tuned prompt is NAME.txt; replaced/NAME.txt is the text that a
    captured prompt replaces, where the program has it.
    """
    form = options["form"]
    if directory is None and prompts_directory is None and form is None:
        raise click.UsageError(
            "Say what to write: agl export RUN DIRECTORY, --prompts DIR, or --marks FORM"
        )
    if form is not None:
        from agl_results._marks import export_marked  # noqa: PLC0415

        export_marked(state, run, form, output=options["output"], file=options["marks_file"])
    if directory is None and prompts_directory is None:
        return
    from agl_core.training import read_state  # noqa: PLC0415
    from agl_results._prompts import checkpoint_at  # noqa: PLC0415

    checkpoint = checkpoint_at(run)
    if prompts_directory is not None:
        prompts = read_state(checkpoint).prompts
        export_prompts(prompts, Path(prompts_directory), source=str(checkpoint), force=force)
    if directory is not None:
        from agl_results._weights import WeightsExport  # noqa: PLC0415

        _check_empty(Path(directory), force=force)
        chosen = WeightsExport(options["weights_format"], options["dtype"], options["policies"])
        for line in chosen.write(checkpoint, Path(directory), state.plugins()):
            click.echo(line)


def export_prompts(
    prompts: Mapping[str, PromptTemplate], directory: Path, *, source: str, force: bool
) -> None:
    """Write the tuned prompts and what they replace, and say where they belong.

    Raises:
        ConfigError: no prompt is tuned, or a file with another text exists; nothing was written.
    """
    tuned = {name: prompt for name, prompt in prompts.items() if prompt.agents}
    if not tuned:
        raise ConfigError(f"{source} has no tuned prompts: none of its prompts has agents")
    files: dict[Path, bytes] = {}
    lines: list[str] = []
    for name, prompt in tuned.items():
        path = directory / f"{url_quoted(name)}.txt"
        files[path] = replaced(prompt.template).encode()
        text = f"the description of tool {prompt.tool!r}" if prompt.tool else "the system prompt"
        place = f"read by agl.resource({name!r})"
        if prompt.known is not None:
            old = directory / _REPLACED / path.name
            files[old] = replaced(prompt.known).encode()
            place = f"{text} of {', '.join(prompt.agents)}, in place of {old}"
        lines.append(f"{path}: {place}")
    _write(files, force=force)
    for line in lines:
        click.echo(line)


def _write(files: Mapping[Path, bytes], *, force: bool) -> None:
    other = [path for path, data in files.items() if path.exists() and path.read_bytes() != data]
    if other and not force:
        raise ConfigError(
            f"{', '.join(map(str, other))} exist with other texts: name another directory, or "
            f"overwrite them with --force"
        )
    for path, data in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            raise ConfigError(f"Cannot write {str(path)!r}: {error.strerror}") from error


def _check_empty(directory: Path, *, force: bool) -> None:
    if directory.is_dir() and any(directory.iterdir()) and not force:
        raise ConfigError(
            f"{str(directory)!r} is not empty: name another directory, or overwrite its files with "
            f"--force"
        )

"""``agl rollouts export``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from agl_core.cli.group import CliState, debug_option, plugin_option
from agl_core.cli.output import STDOUT, writing
from agl_core.errors import ConfigError
from agl_records.commands._selection import CLEANING, located, reading, store_argument

if TYPE_CHECKING:
    from agl_records._run import ExportOptions, ExportSummary


@click.command()
@store_argument
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "parquet", "openai"]),
    default="jsonl",
    show_default=True,
    metavar="FORMAT",
    help="jsonl or parquet: a row per token path; openai: chat fine-tuning.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    default=STDOUT,
    metavar="FILE",
    help="Write to this file; standard output without it.",
)
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="NAME",
    help="Of this agent, by its alias or, without one, its name; or a glob; may be repeated. "
    "Without it, those that the run trains.",
)
@click.option(
    "--mode",
    "modes",
    multiple=True,
    default=("train",),
    show_default=True,
    type=click.Choice(["train", "val", "test"]),
    metavar="MODE",
    help="Of rollouts for train, val or test; may be repeated.",
)
@click.option(
    "--min-reward", type=float, metavar="R", help="Only where the agent earned at least so much."
)
@click.option("--run", "run_id", metavar="NAME", help="Of this run only.")
@click.option(
    "--failed",
    type=click.Choice(["skip", "include"]),
    default="skip",
    show_default=True,
    metavar="WHAT",
    help="skip or include attempts that did not succeed.",
)
@plugin_option
@debug_option
@click.pass_obj
def command(state: CliState, *, target: str, output: str, **options: Any) -> None:
    """Write what agents said and earned as training data, one line or row per token path.

    Only attempts whose records join exactly are exported; all others are counted by cause on
    standard error.
    """
    from agl_records._run import ExportOptions  # noqa: PLC0415

    chosen = ExportOptions(
        format=options["format_"],
        agents=options["agents"],
        modes=options["modes"],
        run_id=options["run_id"],
        min_reward=options["min_reward"],
        failed=options["failed"],
    )
    if chosen.format == "parquet" and output == STDOUT:
        raise ConfigError("Parquet is binary: name a file with --output FILE")
    _report(asyncio.run(_export(state, target, output, chosen)), output)


async def _export(
    state: CliState, target: str, output: str, options: ExportOptions
) -> ExportSummary:
    from agl_records._run import export_from  # noqa: PLC0415

    address = located(state, target)
    plugins = state.plugins()
    if address.run is not None:
        address.check_offered(plugins, "adapters", address.run.capture.adapter)
    cleaning = click.get_current_context().meta.get(CLEANING)
    cleaned = cleaning(address.run) if cleaning is not None else None
    async with reading(state, address) as store:
        with writing(output) as stream:
            return await export_from(
                store, stream, options, plugins=plugins, config=address.run, cleaned=cleaned
            )


def _report(summary: ExportSummary, output: str) -> None:
    where = "" if output == STDOUT else f" in {output}"
    click.echo(f"{summary.rows} rows of {summary.attempts} attempts{where}", err=True)
    for title, counts in (
        ("attempts left out", summary.left_out),
        ("not in these rows", summary.lost),
    ):
        if counts:
            listed = ", ".join(f"{cause} {count}" for cause, count in sorted(counts.items()))
            click.echo(f"{title}: {listed}", err=True)
    if summary.unverified:
        click.echo(
            f"{summary.unverified} rows were not compared with the recorded tokens: the model's chat "
            f"template is not available",
            err=True,
        )
    for problem in summary.problems:
        click.echo(f"  {problem}", err=True)

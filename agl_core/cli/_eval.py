"""``agl eval``."""

from __future__ import annotations

from pathlib import Path

import click

from agl_core.cli.group import (
    CliState,
    debug_option,
    importable,
    json_option,
    plugin_option,
    set_option,
)
from agl_core.cli.output import progress_stream, write_json


@click.command()
@click.argument("config_file", metavar="CONFIG")
@click.option(
    "--checkpoint",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="Score these weights instead of the configured model's own.",
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
    checkpoint: str | None,
    overrides: tuple[str, ...],
    json_file: str | None,
) -> None:
    """Score an agent program on its validation tasks, with a 95 % interval.

    Without validation tasks the training tasks are scored. Records lie in the run's folder eval.

    CONFIG is a configuration (.toml, .yaml, .json); a run's own is config.json in its directory.
    """
    from agl_core.app import App, run_blocking  # noqa: PLC0415
    from agl_core.app.blocking import only_run  # noqa: PLC0415
    from agl_core.app.parts import displayed  # noqa: PLC0415
    from agl_core.serving import withheld_key  # noqa: PLC0415

    config = state.config(config_file, overrides)
    plugins = state.plugins(config.plugins)
    with (
        only_run(config.name) as whole,
        withheld_key(),
        importable(Path()),
        displayed(progress_stream(json_file), plugins) as displays,
    ):
        app = App(config, observers=displays, plugins=plugins)
        evaluation = run_blocking(whole(app.evaluate(checkpoint=checkpoint)))
    if json_file is not None:
        write_json(evaluation, json_file)

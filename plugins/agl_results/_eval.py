"""``agl eval``."""

from __future__ import annotations

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
from agl_core.cli.output import progress_stream, write_json

if TYPE_CHECKING:
    from agl_prompts import Difference

    from agl_core.config import RunConfig
    from agl_core.types import Evaluation

_CONFIGURATIONS: Final = (".toml", ".yaml", ".yml", ".json")
_MOST: Final = 2


@click.command(short_help="Score an agent program, or compare two versions of its prompts.")
@click.argument("target", metavar="CONFIG_OR_RUN")
@click.option(
    "--checkpoint",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="Score these weights and prompts instead of the configured ones.",
)
@click.option(
    "--prompts",
    "versions",
    multiple=True,
    metavar="VERSION",
    help="Use these prompts: a version of agl prompts, before, best, or a checkpoint's directory. "
    "Give it twice to compare two.",
)
@set_option
@plugin_option
@json_option
@debug_option
@click.pass_obj
def command(
    state: CliState,
    *,
    target: str,
    checkpoint: str | None,
    versions: tuple[str, ...],
    overrides: tuple[str, ...],
    json_file: str | None,
) -> None:
    """Score an agent program on its validation tasks, with a 95 % interval.

    Without validation tasks the training tasks are scored. Records lie in the run's folder eval.

    CONFIG_OR_RUN is a configuration (.toml, .yaml, .json), a run's directory, or the name of a run
    in agl_runs.

    Two versions of the prompts run on the same tasks with the same seeds. Their difference is shown
    with its 95 % interval and the p-value of a two-sided paired randomisation test. Validation tasks
    have chosen the best version, so its score on them is too high: give other tasks with
    --set tasks.val=FILE.
    """
    if len(versions) > _MOST:
        raise click.UsageError("Give --prompts at most twice: two versions are compared")
    config = _config(state, target, overrides)
    found = _evaluate(state, config, checkpoint, versions, json_file)
    if len(versions) < _MOST:
        if json_file is not None:
            write_json(found[0], json_file)
        return
    from agl_prompts import difference_of  # noqa: PLC0415

    difference = difference_of(found[0].tasks, found[1].tasks)
    for line in _compared(versions, found, difference):
        click.echo(line, file=progress_stream(json_file))
    if json_file is not None:
        rows = [
            {"prompts": version, "evaluation": evaluation}
            for version, evaluation in zip(versions, found, strict=True)
        ]
        write_json({"versions": rows, "difference": difference}, json_file)


def _config(state: CliState, target: str, overrides: tuple[str, ...]) -> RunConfig:
    """Return the configuration of a file, or that of a run where its directory is now."""
    if Path(target).suffix.lower() in _CONFIGURATIONS and not Path(target).is_dir():
        return state.config(target, overrides)
    from agl_stores import run_directory  # noqa: PLC0415

    from agl_core.config import RESOLVED  # noqa: PLC0415

    directory = run_directory(target).resolve()
    config = state.config(directory / RESOLVED, overrides)
    place = {"name": directory.name, "directory": str(directory.parent)}
    return config.model_copy(update=place)


def _evaluate(
    state: CliState,
    config: RunConfig,
    checkpoint: str | None,
    versions: tuple[str, ...],
    json_file: str | None,
) -> list[Evaluation]:
    """Evaluate each version in turn; without versions what the run serves itself."""
    from agl_core.app import App, displayed, only_run, run_blocking  # noqa: PLC0415
    from agl_core.serving import withheld_key  # noqa: PLC0415

    given = [None]
    if versions:
        from agl_results._prompts import prompts_of  # noqa: PLC0415

        given = [prompts_of(config, version) for version in versions]
        config = _on_one_port(config)
    plugins = state.plugins(config.plugins)
    with (
        only_run(config.name) as whole,
        withheld_key(),
        importable(Path()),
        displayed(progress_stream(json_file), plugins) as displays,
    ):
        app = App(config, observers=displays, plugins=plugins)

        async def each() -> list[Evaluation]:
            return [await app.evaluate(checkpoint=checkpoint, prompts=one) for one in given]

        return run_blocking(whole(each()))


def _on_one_port(config: RunConfig) -> RunConfig:
    """Choose the gateway's port once: a program may keep a client from the first version."""
    from agl_core.serving import bind  # noqa: PLC0415

    gateway = config.gateway
    if gateway.url is not None or gateway.port:
        return config
    with bind(gateway.host, 0) as listener:
        chosen = gateway.model_copy(update={"port": listener.getsockname()[1]})
    return config.model_copy(update={"gateway": chosen})


def _compared(
    versions: tuple[str, ...], found: list[Evaluation], difference: Difference
) -> list[str]:
    from agl_core.types.run import estimate  # noqa: PLC0415

    lines = [
        f"prompts {version}: {estimate(evaluation.score)}"
        for version, evaluation in zip(versions, found, strict=True)
    ]
    interval = "no interval for fewer than 6 tasks"
    if difference.low is not None and difference.high is not None:
        interval = f"[{difference.low:+.3f}, {difference.high:+.3f}]"
    lines.append(
        f"difference {difference.mean:+.3f} {interval} n={difference.n}, p = {difference.p:.3g} "
        f"({difference.method})"
    )
    return lines

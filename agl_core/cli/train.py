"""``agl train``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agl_core.cli.group import (
    CliState,
    debug_option,
    importable,
    json_option,
    plugin_option,
    run_script,
    set_option,
)
from agl_core.cli.output import progress_stream, write_json

if TYPE_CHECKING:
    from agl_core.interfaces import Observer
    from agl_core.types import Evaluation, Report, StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    overrides: tuple[str, ...]
    json_file: str | None


@click.command()
@click.argument("file", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--config", "config_file", metavar="FILE", help="The configuration, by name.")
@click.option("--print-config", is_flag=True, help="Print the resolved configuration and stop.")
@set_option
@plugin_option
@json_option
@debug_option
@click.pass_obj
def command(
    state: CliState,
    *,
    file: str | None,
    arguments: tuple[str, ...],
    config_file: str | None,
    print_config: bool,
    **options: Any,
) -> None:
    """Train the named agents of an agent program.

    FILE is a configuration (.toml, .yaml, .json), or a Python script that calls agl.train itself;
    arguments after -- are the script's own.
    """
    if (file is None) == (config_file is None):
        raise click.UsageError("Name one file: agl train FILE, or agl train --config FILE")
    path = Path(file or config_file or "")
    request = _Request(**options)
    if path.suffix == ".py" and config_file is None:
        if print_config:
            raise click.UsageError("--print-config takes a configuration file, not a script")
        _train_script(state, path, arguments, request)
    elif arguments:
        raise click.UsageError(f"Only a script takes arguments; got {' '.join(arguments)}")
    else:
        _train_config(state, path, request, print_only=print_config)


def _train_config(state: CliState, path: Path, request: _Request, *, print_only: bool) -> None:
    config = state.config(path, request.overrides)
    if print_only:
        from agl_core.app.names import check_names  # noqa: PLC0415
        from agl_core.config.loader import dump  # noqa: PLC0415

        check_names(config, state.plugins(config.plugins))
        click.echo(dump(config), nl=False)
        return
    from agl_core.app import App, run_blocking  # noqa: PLC0415
    from agl_core.app.blocking import only_run  # noqa: PLC0415
    from agl_core.app.parts import displayed  # noqa: PLC0415
    from agl_core.serving import withheld_key  # noqa: PLC0415

    plugins = state.plugins(config.plugins)
    with (
        only_run(config.name) as whole,
        withheld_key(),
        importable(Path()),
        displayed(progress_stream(request.json_file), plugins) as displays,
    ):
        observers = (*displays, *_reports(request.json_file))
        run_blocking(whole(App(config, observers=observers, plugins=plugins).train()))


def _train_script(state: CliState, path: Path, arguments: Sequence[str], request: _Request) -> None:
    """Run the user's script as ``python script.py`` would, with our options around it.

    Raises:
        ConfigError: there is no such script, or it ended without calling ``agl.train``.
    """
    from agl_core.app.facade import Invocation, invoked  # noqa: PLC0415
    from agl_core.errors import ConfigError  # noqa: PLC0415

    if not path.is_file():
        raise ConfigError(f"There is no script {str(path)!r}")
    seen = _Seen()
    invocation = Invocation(
        overrides=request.overrides,
        plugins=tuple(state.files),
        observers=(*_reports(request.json_file), seen),
        stream=progress_stream(request.json_file),
    )
    with invoked(invocation):
        run_script(path, arguments)
    if not seen.trained:
        raise ConfigError(
            f"Script {str(path)!r} ended without calling agl.train(...): call it under "
            f"`if __name__ == '__main__':`, or name a configuration file instead"
        )


def _reports(json_file: str | None) -> tuple[Observer, ...]:
    return (_JsonReport(json_file),) if json_file is not None else ()


class _Silent:
    """An observer that looks at nothing."""

    def started(self, config: Any) -> None: ...

    def step(self, report: StepReport) -> None: ...

    def evaluation(self, evaluation: Evaluation) -> None: ...

    def finished(self, report: Report) -> None: ...


class _JsonReport(_Silent):
    def __init__(self, target: str) -> None:
        self._target = target

    def finished(self, report: Report) -> None:
        write_json(report, self._target)


class _Seen(_Silent):
    """Whether any run began."""

    def __init__(self) -> None:
        self.trained = False

    def started(self, config: Any) -> None:
        del config
        self.trained = True

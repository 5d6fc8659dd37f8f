"""The command group: commands come from plugins, errors are shown in one paragraph."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agl_core._builtin import load_plugins
from agl_core._interrupts import INTERRUPTED
from agl_core.cli.output import STDOUT, tolerate_any_console, warnings_shown
from agl_core.errors import AglError, ConfigError, PluginError
from agl_core.plugins import PluginManager, Registration
from agl_core.plugins.registry import missing_extra, require_extra
from agl_core.plugins.requirements import own_version

if TYPE_CHECKING:
    from agl_core.config import RunConfig


@dataclass(slots=True)
class CliState:
    """What the commands of one invocation share."""

    debug: bool = False
    files: list[str] = field(default_factory=list[str])
    """Local plugin files named so far."""
    _plugins: PluginManager | None = None
    _loaded: set[Path] = field(default_factory=set[Path])

    def config(self, file: str | Path, overrides: Sequence[str]) -> RunConfig:
        """The configuration of a file, with the plugin files named so far.

        Raises:
            ConfigError: see `load_config`.
        """
        from agl_core.config.loader import load_config, with_plugins  # noqa: PLC0415

        return with_plugins(load_config(file, overrides), self.files)

    def plugins(self, files: Iterable[str] = (), *, tolerant: bool = False) -> PluginManager:
        """The plugins, loaded once; further local files are added, each once.

        Args:
            files: Beside those of the whole program.
            tolerant: Continue after a broken file; it is listed as broken.

        Raises:
            PluginError: a local file is broken.
        """
        if self._plugins is None:
            self._plugins = load_plugins()
        for file in (*self.files, *files):
            path = Path(file).expanduser().resolve()
            if path not in self._loaded:
                self._loaded.add(path)
                with suppress(PluginError) if tolerant else nullcontext():
                    self._plugins.load_file(path)
        return self._plugins


class Subcommands(click.Group):
    """Commands that plugins register: as ``<name of the group>.<name>``, such as ``store.ls``."""

    @property
    def _prefix(self) -> str:
        return f"{self.name}."

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = _state(ctx).plugins().registry("commands").names()
        inside = [
            name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)
        ]
        return [name for name in inside if "." not in name]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if "." in cmd_name:
            return None
        commands, name = _state(ctx).plugins().registry("commands"), self._prefix + cmd_name
        try:
            command: click.Command = commands.resolve(name)
        except ConfigError as error:
            unknown = commands.unknown(cmd_name, self.list_commands(ctx))
            raise click.UsageError(str(unknown), ctx) from error
        registration, extended = commands.get(name), copy(command)
        options = [each for each in commands.names() if each.startswith(f"{name}.--")]
        extended.params = [*command.params, *map(commands.create, options)]
        return extended if registration.extra is None else _checked(extended, registration)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands by their registered summary; none of them is imported."""
        registry = _state(ctx).plugins().registry("commands")
        rows = [
            (name, registry.get(self._prefix + name).summary) for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class AglGroup(Subcommands):
    """Finds commands through plugins and turns `AglError` into a message and an exit status.

    Exit status: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted.
    """

    @property
    def _prefix(self) -> str:
        return ""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run to the end; in standalone mode the process exits with the status."""
        tolerate_any_console()
        extra.setdefault("obj", CliState())
        with warnings_shown():
            status = self._run(args, prog_name, complete_var, extra)
        if standalone_mode:
            sys.exit(status)
        return status

    def _run(
        self,
        args: Sequence[str] | None,
        prog_name: str | None,
        complete_var: str | None,
        extra: dict[str, Any],
    ) -> int:
        state: CliState = extra["obj"]
        try:
            outcome = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except click.Abort:
            click.echo("Interrupted.", err=True)
            return INTERRUPTED
        except AglError as error:
            show_failure(error, debug=state.debug)
            return failure_status(error)
        return outcome if isinstance(outcome, int) else 0


def _checked(command: click.Command, registration: Registration) -> click.Command:
    """The command, which says what to install before it begins; its help needs none of that."""

    def invoke(ctx: click.Context) -> Any:
        require_extra(registration)
        try:
            return command.invoke(ctx)
        except ImportError as error:
            missing = missing_extra(registration, error)
            if missing is None or missing is error:
                raise
            raise missing from error

    checked = copy(command)
    checked.invoke = invoke
    return checked


def _state(ctx: click.Context) -> CliState:
    return ctx.ensure_object(CliState)


def show_failure(error: AglError, *, debug: bool) -> None:
    """Show on standard error what failed; with its traceback if `debug`."""
    if debug:
        traceback.print_exception(error)
    else:
        click.echo(_paragraph(error), err=True)


def failure_status(error: AglError) -> int:
    """Exit status of a process that failed so."""
    return 2 if isinstance(error, ConfigError) else 1


def _paragraph(error: AglError) -> str:
    text = " ".join(str(error).split())
    hint = " (--debug shows the traceback)" if error.__cause__ is not None else ""
    return f"Error: {text}{hint}"


def _show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"agl-core {own_version()}")
        ctx.exit()


def _add_files(ctx: click.Context, _: click.Parameter, value: tuple[str, ...]) -> None:
    _state(ctx).files += value


@click.command(cls=AglGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--plugin",
    multiple=True,
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_add_files,
    help="Load a local plugin file; may be repeated.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version)
@click.pass_obj
def cli(state: CliState, *, debug: bool) -> None:
    """Train the sub-agents you name of an agent that already works."""
    state.debug = debug


def _debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(CliState).debug = True


def _writable(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Refuse at once what could not be written after hours."""
    if value not in (None, STDOUT) and not Path(value).exists():
        folder = Path(value).absolute().parent
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if not (folder.is_dir() and os.access(folder, os.W_OK)):
            raise click.BadParameter(
                f"{value!r} cannot be written: {str(folder)!r} is no folder that you may write to"
            )
    return value


set_option: Any = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override one key, such as algorithm.lr=1e-6; may be repeated.",
)
plugin_option: Any = click.option(
    "--plugin",
    multiple=True,
    metavar="FILE",
    expose_value=False,
    callback=_add_files,
    help="Load a local plugin file; may be repeated.",
)
json_option: Any = click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, allow_dash=True),
    callback=_writable,
    help="Write the figures to this file as JSON; - writes to standard output.",
)
debug_option: Any = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_debug, help="Show tracebacks."
)
host_option: Any = click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on."
)
port_option: Any = click.option(
    "--port", default=0, show_default=True, help="0: one the system chooses."
)


@contextmanager
def importable(folder: Path) -> Generator[None, None, None]:
    """Let modules of a folder be imported, first of all, as beside a script."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def run_script(path: Path, arguments: Sequence[str]) -> None:
    """Do what ``python path arguments...`` does, in this process.

    Raises:
        BaseException: what the script raises, `SystemExit` included.
    """
    argv = sys.argv
    sys.argv = [str(path), *arguments]
    try:
        with importable(path.parent):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = argv

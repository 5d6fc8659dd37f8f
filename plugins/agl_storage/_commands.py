"""``agl storage``: its subcommands are registered as ``storage.<name>``."""

from __future__ import annotations

import posixpath
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from agl_stores import run_directory

from agl_core.cli.group import Subcommands, debug_option, plugin_option
from agl_core.config import RESOLVED, load_config, validate, without_secrets
from agl_core.errors import ConfigError
from agl_core.text import json_bytes
from agl_storage._local import (
    CHECKPOINTS,
    SNAPSHOT,
    checkpoint_unit,
    checkpoints,
    folder_unit,
    is_checkpoint,
    run_unit,
)
from agl_storage._manifest import MANIFEST, DamagedError, Unit
from agl_storage._options import StorageOptions
from agl_storage._remote import Remote
from agl_storage._resume import stored

_EXPORTS: Final = "exports"
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_STEP: Final = 1000

options_option: Any = click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An argument of the file system of fsspec, such as endpoint_url=http://HOST; repeatable.",
)


@click.command(name="storage", cls=Subcommands)
def storage() -> None:
    """List, fetch and store what runs have in object storage.

    URL is the address of a storage, of a run in it, or of a folder of that run, such as
    s3://bucket/prefix/RUN/checkpoints/step-000010.
    """


@click.command()
@click.argument("url")
@options_option
@plugin_option
@debug_option
def ls(*, url: str, options: tuple[str, ...]) -> None:
    """List what is stored, and whether all files are there.

    The digests of the files are checked by agl storage pull.
    """
    remote = _remote(url, options)
    sizes = remote.sizes()
    if not sizes:
        raise ConfigError(f"There is nothing in {url}")
    for place in _places(sizes):
        start = f"{place}/" if place else ""
        try:
            manifest = _at(remote, place).manifest()
            wrong = [
                name
                for name, file in manifest.files.items()
                if sizes.get(start + name) != file.size
            ]
            state = f"damaged: {', '.join(wrong)}" if wrong else "whole"
            count, size, when = len(manifest.files), manifest.size, manifest.created[:19]
        except DamagedError as error:
            own = [each for name, each in sizes.items() if name.startswith(start)]
            state, count, size, when = f"damaged: {error}", len(own), sum(own), "-"
        click.echo(f"{place or '.'}  {count} files  {_readable(size)}  {when}  {state}")


@click.command()
@click.argument("url")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--newest", is_flag=True, help="Fetch only the newest whole checkpoint of each run.")
@options_option
@plugin_option
@debug_option
def pull(*, url: str, directory: Path, newest: bool, options: tuple[str, ...]) -> None:
    """Fetch all that URL has into DIRECTORY, and check every file's size and digest.

    What is damaged is named, and left out.
    """
    if directory.is_dir() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty: name another directory")
    remote = _remote(url, options)
    damaged: list[str] = []
    fetched = 0
    done: set[str] = set()
    for place in reversed(_places(remote.sizes())):
        folder, _, name = place.rpartition("/")
        if newest and is_checkpoint(name) and folder in done:
            continue
        target = directory / place
        try:
            source = _at(remote, place)
            source.fetch(source.manifest(), target)
        except DamagedError as error:
            damaged.append(f"{place or '.'}: {error}")
            if place:
                shutil.rmtree(target, ignore_errors=True)
            continue
        fetched += 1
        done.add(folder)
        click.echo(f"{place or '.'} -> {target}")
    if damaged:
        raise ConfigError(f"Damaged, and not fetched: {'; '.join(damaged)}")
    if not fetched:
        raise ConfigError(f"There is nothing to fetch in {url}: agl storage ls shows what is")


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("url")
@options_option
@plugin_option
@debug_option
def push(*, directory: Path, url: str, options: tuple[str, ...]) -> None:
    """Store DIRECTORY at URL: a run's directory, a checkpoint, or an export.

    Of a run, checkpoints, configuration, report and prompts are stored; checkpoints that are there
    already are not stored again.
    """
    remote = _remote(url, options)
    for unit in _units(directory, remote):
        manifest = remote.put(unit)
        click.echo(f"{unit.place or '.'}  {len(manifest.files)} files  {_readable(manifest.size)}")


def export_option() -> click.Option:
    """Return the option ``--storage`` of ``agl export``."""

    def begin(context: click.Context, _: click.Parameter, given: bool) -> None:
        if given:
            context.call_on_close(lambda: _store_export(context.params))

    return click.Option(
        ["--storage"],
        is_flag=True,
        expose_value=False,
        callback=begin,
        help="Also store DIRECTORY in the run's storage, as exports/NAME of its folder there.",
    )


def _store_export(params: dict[str, Any]) -> None:
    if sys.exc_info()[0] is not None:
        return
    directory = params.get("directory") or params.get("prompts_directory")
    if directory is None:
        raise ConfigError("--storage stores a directory: name one, or use --prompts DIR")
    given = Path(params["run"])
    inside = [given, *given.resolve().parents[:2]]
    run = next((each for each in inside if (each / RESOLVED).is_file()), None)
    file = (run or run_directory(params["run"])) / RESOLVED
    config = load_config(file)
    if "storage" not in config.sections:
        raise ConfigError(f"{file} has no section [storage]: use agl storage push {directory} URL")
    options = validate(StorageOptions, config.sections["storage"], where="storage")
    remote = Remote(f"{options.address()}/{config.name}", options.options)
    place = f"{_EXPORTS}/{Path(directory).resolve().name}"
    remote.put(folder_unit(Path(directory), place))
    click.echo(f"{directory} -> {remote.url}/{place}")


def _units(directory: Path, remote: Remote) -> Iterator[Unit]:
    if not (directory / RESOLVED).is_file() or not (directory / CHECKPOINTS).is_dir():
        unit = folder_unit(directory)
        if not unit.files:
            raise ConfigError(f"{directory} is empty: there is nothing to store")
        yield unit
        return
    config = load_config(directory / RESOLVED)
    known = {manifest.facts.identity for manifest in stored(remote)[0].values()}
    yield run_unit(directory, json_bytes(without_secrets(config), indent=2))
    snapshots = directory / SNAPSHOT
    try:
        for checkpoint in checkpoints(directory):
            unit = checkpoint_unit(checkpoint, snapshots / checkpoint.name, config)
            if unit.mark not in known:
                yield unit
    finally:
        shutil.rmtree(snapshots, ignore_errors=True)


def _places(sizes: dict[str, int]) -> list[str]:
    """Return the folders with a manifest, and those of checkpoints without."""
    found = {posixpath.dirname(path) for path in sizes if posixpath.basename(path) == MANIFEST}
    for path in sizes:
        parts = path.split("/")
        for depth, part in enumerate(parts[:-1]):
            if is_checkpoint(part):
                found.add("/".join(parts[: depth + 1]))
    return sorted(found)


def _at(remote: Remote, place: str) -> Remote:
    return remote.below(place) if place else remote


def _remote(url: str, options: tuple[str, ...]) -> Remote:
    if "://" not in url:
        raise ConfigError(f"{url!r} is no address: write s3://BUCKET/PREFIX")
    given: dict[str, str] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise ConfigError(f"--option {option!r}: write KEY=VALUE")
        given[key] = value
    return Remote(url, given)


def _readable(size: float) -> str:
    for unit in _UNITS[:-1]:
        if size < _STEP:
            return f"{size:.3g} {unit}"
        size /= _STEP
    return f"{size:.3g} {_UNITS[-1]}"

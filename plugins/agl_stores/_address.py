"""Functions that find the store of a run's directory, a configuration, a file or an address."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from agl_core.config import RESOLVED, RunConfig, StoreConfig, load_config, scheme_of
from agl_core.errors import ConfigError
from agl_core.interfaces import StoreLifecycle
from agl_core.plugins import Kind, PluginManager
from agl_core.store import (
    STORE_FILE,
    Readable,
    described,
    layered,
    store_of,
    store_options,
    store_schemes,
    without_password,
)
from agl_stores._layer import StoreLayer

_CONFIGURATIONS: Final = (".toml", ".yaml", ".yml", ".json")


def has_scheme(target: str) -> bool:
    """Return whether a text is an address such as ``http://host``, not a path."""
    return scheme_of(target) != ""


def store_at(address: str, plugins: PluginManager) -> StoreConfig:
    """Return the section of the store that takes an address, by `StoreOptions.schemes`.

    Raises:
        ConfigError: no store takes the address, or several do.
    """
    schemes = store_schemes(plugins)
    scheme = scheme_of(address).lower()
    able = [name for name, taken in schemes.items() if scheme in taken]
    if len(able) == 1:
        return StoreConfig.model_validate({"name": able[0], "url": address})
    if able:
        raise ConfigError(
            f"{without_password(address)!r} may be a store of {able}: name one in a configuration file, and "
            f"give the file instead"
        )
    known = sorted({each for taken in schemes.values() for each in taken})
    raise ConfigError(
        f"{without_password(address)!r} is not the address of a store: those of the loaded plugins begin with "
        f"{', '.join(f'{each}://' for each in known) or 'nothing'}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """The location of a store."""

    config: StoreConfig
    options: BaseModel | None
    """Validated options of `config`."""
    directory: Path
    """Directory of the run."""
    run: RunConfig | None = None
    """The run's configuration; None if the target is only a store."""
    named: bool = True
    """Whether the user gave the location; False if it comes from the files in a run's directory."""

    @property
    def url(self) -> str | None:
        """Address of the server that keeps the records; None without a server."""
        # Options with another base class may have an address too.
        return described(self.options).address or getattr(self.options, "url", None)

    @property
    def file(self) -> Path | None:
        """The database file; None if the store is not a file."""
        return described(self.options).file(self.directory)

    def check_named(self, command: str = "") -> None:
        """Check that no key is sent to a server whose address comes only from a run's directory.

        Args:
            command: The command that reads that server, for the error message.

        Raises:
            ConfigError: the user did not give the server's address.
        """
        if self.url is None or self.named:
            return
        plain = without_password(self.url) == self.url  # no password, which must not be printed
        typed = f": {command}" if command and plain and described(self.options).schemes else ""
        raise ConfigError(
            f"Run {str(self.directory)!r} keeps its records at {without_password(self.url)}, as the files in "
            f"its directory say. Nothing was sent there: keys and passwords are only sent to an "
            f"address that you name. If that server is yours, give its address or your own "
            f"configuration file in place of the directory{typed}"
        )

    def check_offered(self, plugins: PluginManager, kind: Kind, name: str) -> None:
        """Check that a component of the run is registered without the run's plugin files.

        A run's plugin files are loaded only when it is run. Commands that read a run load only the
        plugin files that the user gives.

        Raises:
            ConfigError: `name` is not registered, and the run has plugin files that may do so.
        """
        _check_offered(self.run, self.directory, plugins, (kind, name))


def _check_offered(
    run: RunConfig | None, directory: Path, plugins: PluginManager, wanted: tuple[Kind, str]
) -> None:
    kind, name = wanted
    files = run.plugins if run is not None else []
    if files and name not in plugins.registry(kind):
        raise ConfigError(
            f"Run {str(directory)!r} uses {name!r} of {kind}, which no loaded plugin registers. "
            f"Its plugin files are not loaded to look at it: if you trust them, name them with "
            f"{' '.join(f'--plugin {file}' for file in files)}"
        )


def locate_store(target: str | Path, plugins: PluginManager, *, new: bool = False) -> StoreAddress:
    """Find the store of a run's directory, a configuration file, a database file or an address.

    Args:
        target: The user's argument.
        plugins: The loaded plugins; a run's plugin files are not loaded.
        new: Whether the file of the records need not exist.

    Raises:
        ConfigError: the target is not one of these, its records do not exist, or no loaded plugin
            registers its store.
    """
    text = str(target)
    path = Path(text).expanduser()
    if has_scheme(text):
        config = store_at(text, plugins)
        options = store_options(config, plugins)
        return StoreAddress(config=config, options=options, directory=Path())
    if path.is_dir():
        address = _of_directory(path, plugins)
    elif path.suffix.lower() in _CONFIGURATIONS:
        run = load_config(path)
        place = path.parent if path.name == RESOLVED else Path(run.directory) / run.name
        # A configuration file in a run's directory does not count as given by the user.
        named = not (path.parent / RESOLVED).is_file()
        address = _of_run(run, place, plugins, named=named)
    elif path.is_file():
        address = of_file(path, plugins)
    else:
        raise ConfigError(
            f"{text!r} is not a run's directory, configuration, store file or address (SCHEME://…): "
            f"no such file or directory exists"
        )
    _check_kept(address, new=new)
    return address


def of_file(path: Path, plugins: PluginManager) -> StoreAddress:
    """Return the address of the default store in a file, which need not exist."""
    config = StoreConfig.model_validate({"path": str(path)})
    options = store_options(config, plugins)
    return StoreAddress(config=config, options=options, directory=path.parent)


def new_store(target: str | Path, plugins: PluginManager) -> StoreAddress:
    """Find a store as `locate_store` does; its file need not exist.

    A directory without a run gets the default store's file, and so does a path that does not exist:
    it is that file if it has a suffix, such as ``copy.db``, and else the directory of the file.

    Raises:
        ConfigError: the target is a configuration that cannot be read, or no loaded plugin
            registers its store.
    """
    path = Path(target).expanduser()
    if has_scheme(str(target)) or path.is_file() or (path / RESOLVED).is_file():
        return locate_store(target, plugins, new=True)
    if path.suffix.lower() in _CONFIGURATIONS:
        raise ConfigError(f"{str(target)!r} does not exist: name a configuration, or a .db file")
    is_file = path.suffix != "" and not path.is_dir()
    return of_file(path if is_file else path / STORE_FILE, plugins)


def store_file(target: str, plugins: PluginManager) -> Path:
    """Return the database file for a file or a run's directory, whether or not it exists.

    For a run whose store is a server, this is the default store's file in the run's directory,
    which the server uses.

    Raises:
        ConfigError: the run's configuration cannot be read.
    """
    path = Path(target).expanduser()
    if not path.is_dir():
        return path
    resolved = path / RESOLVED
    config = load_config(resolved).store if resolved.is_file() else StoreConfig()
    kept = described(store_options(config, plugins)).file(path)
    return kept or path / STORE_FILE


def _of_run(
    run: RunConfig, directory: Path, plugins: PluginManager, *, named: bool
) -> StoreAddress:
    section = store_of(run, plugins)
    _check_offered(run, directory, plugins, ("stores", section.name))
    options = store_options(section, plugins)
    return StoreAddress(config=section, options=options, directory=directory, run=run, named=named)


def _of_directory(path: Path, plugins: PluginManager) -> StoreAddress:
    if (path / RESOLVED).is_file():
        return _of_run(load_config(path / RESOLVED), path, plugins, named=False)
    config = StoreConfig()
    address = StoreAddress(config=config, options=store_options(config, plugins), directory=path)
    if address.file is not None and address.file.is_file():
        return address
    raise ConfigError(
        f"{str(path)!r} is not a run's directory: it has no {RESOLVED}. Runs are in "
        f"<directory>/<name> of their configuration, by default agl_runs/run"
    )


def _check_kept(address: StoreAddress, *, new: bool) -> None:
    if not described(address.options).kept:
        raise ConfigError(
            f"Run {str(address.directory)!r} kept its records in memory, so they no longer exist"
        )
    file = address.file
    if not new and file is not None and not file.is_file():
        raise ConfigError(
            f"Run {str(address.directory)!r} has no store: there is no file {str(file)!r}"
        )


def make_store_at(address: StoreAddress, plugins: PluginManager) -> StoreLifecycle:
    """Make the store at an address in its layers, without opening it.

    Layers have the options of a configuration that the user gave. Those in a run's directory are
    not used, because an option may name code or files.

    Raises:
        ConfigError: the server's address comes only from a run's directory, or a layer cannot be
            used.
    """
    sections = address.run.sections if address.run is not None and address.named else {}
    return layered(bare_store_at(address, plugins), sections, plugins)


def bare_store_at(address: StoreAddress, plugins: PluginManager) -> StoreLifecycle:
    """Make the store at an address without its layers: it gives and takes records as stored.

    Raises:
        ConfigError: the server's address comes only from a run's directory.
    """
    address.check_named()
    stores = plugins.registry("stores")
    return stores.create(address.config.name, address.options, address.directory)


@asynccontextmanager
async def open_for_reading(
    address: StoreAddress, plugins: PluginManager, *, for_people: bool = False
) -> AsyncGenerator[StoreLifecycle, None]:
    """Open a store for reading, whether or not its run has ended.

    A store that is not `Readable` is opened for reading and writing.

    Args:
        address: The store.
        plugins: The loaded plugins.
        for_people: The records are only shown: a text stands for what a layer cannot read, which
            is otherwise an error. See `agl_stores.StoreLayer.shown`.
    """
    store = make_store_at(address, plugins)
    if isinstance(store, Readable):
        store = store.reader()
    if for_people and isinstance(store, StoreLayer):
        store = store.shown()
    await store.open()
    try:
        yield store
    finally:
        await store.close()

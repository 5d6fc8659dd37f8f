"""From what a user types to the store it means."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agl_core.config import RunConfig, StoreConfig
from agl_core.config.loader import RESOLVED, load_config, validate
from agl_core.errors import ConfigError
from agl_core.interfaces import StoreLifecycle
from agl_core.plugins import PluginManager
from agl_core.plugins.registry import Kind
from agl_core.store.reader import Readable

STORE_FILE: Final = "store.db"
"""Name of the database in a run's directory, unless ``store.path`` says otherwise."""
_CONFIGURATIONS: Final = (".toml", ".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """Where records lie."""

    config: StoreConfig
    directory: Path
    """Of the run."""
    run: RunConfig | None = None
    """The run's configuration; None where the target is but a store."""
    named: bool = True
    """Whether the user names it; False where only the record in a run's directory does."""

    @property
    def file(self) -> Path | None:
        """The database file; None where the store is of another kind."""
        if self.config.name != "sqlite":
            return None
        return Path(self.config.path or self.directory / STORE_FILE)

    def check_named(self, command: str = "") -> None:
        """Check that no key goes to a server that only a run's own record names.

        Args:
            command: What the user types to look at that server.

        Raises:
            ConfigError: it would.
        """
        if self.config.url is None or self.named:
            return
        typed = f": {command}" if command and self.config.name == "http" else ""
        raise ConfigError(
            f"Run {str(self.directory)!r} keeps its records at {self.config.url}, as the files in "
            f"its directory say. Nothing was sent there: AGL_API_KEY goes only to an address that "
            f"you name. If that server is yours, give its address or your own configuration file in "
            f"place of the directory{typed}"
        )

    def check_offered(self, plugins: PluginManager, kind: Kind, name: str) -> None:
        """Check that something of the run can be made without executing what the run names.

        A run's plugin files are loaded when it is run. Looking at it loads those that the user names.

        Raises:
            ConfigError: it is not registered, but the run has plugin files, which may register it.
        """
        files = self.run.plugins if self.run is not None else []
        if files and name not in plugins.registry(kind):
            raise ConfigError(
                f"Run {str(self.directory)!r} uses {name!r} of {kind}, which no loaded plugin "
                f"registers. Its plugin files are not loaded to look at it: if you trust them, "
                f"name them with {' '.join(f'--plugin {file}' for file in files)}"
            )


def locate_store(target: str | Path) -> StoreAddress:
    """Find the store of a run's directory, a configuration, a database file or a URL.

    Raises:
        ConfigError: the target is none of these, or its records are gone.
    """
    text = str(target)
    if text.startswith(("http://", "https://")):
        config = validate(StoreConfig, {"name": "http", "url": text}, where="store")
        return StoreAddress(config=config, directory=Path())
    path = Path(text).expanduser()
    if path.is_dir():
        address = _of_directory(path)
    elif path.suffix.lower() in _CONFIGURATIONS:
        run = load_config(path)
        place = path.parent if path.name == RESOLVED else Path(run.directory) / run.name
        # A configuration file in a run's directory counts as the run's, not as the user's.
        named = not (path.parent / RESOLVED).is_file()
        address = StoreAddress(config=run.store, directory=place, run=run, named=named)
    elif path.is_file():
        config = StoreConfig(name="sqlite", path=str(path))
        address = StoreAddress(config=config, directory=path.parent)
    else:
        raise ConfigError(
            f"{text!r} is no run's directory, configuration, store file or http:// address: "
            f"there is nothing there"
        )
    _check_kept(address)
    return address


def _of_directory(path: Path) -> StoreAddress:
    if (path / RESOLVED).is_file():
        run = load_config(path / RESOLVED)
        return StoreAddress(config=run.store, directory=path, run=run, named=False)
    if (path / STORE_FILE).is_file():
        config = StoreConfig(name="sqlite", path=str(path / STORE_FILE))
        return StoreAddress(config=config, directory=path)
    raise ConfigError(
        f"{str(path)!r} is no run's directory: it has no {RESOLVED}. Runs lie in "
        f"<directory>/<name> of their configuration, by default agl_runs/run"
    )


def _check_kept(address: StoreAddress) -> None:
    if address.config.name == "memory":
        raise ConfigError(
            f"Run {str(address.directory)!r} kept its records in memory: they are gone"
        )
    file = address.file
    if file is not None and not file.is_file():
        raise ConfigError(
            f"Run {str(address.directory)!r} has no store: there is no file {str(file)!r}"
        )


def make_store_at(address: StoreAddress, plugins: PluginManager) -> StoreLifecycle:
    """The store at an address, not yet open.

    Raises:
        ConfigError: no loaded plugin registers it, or only a run's own record names its server.
    """
    address.check_named()
    name = address.config.name
    address.check_offered(plugins, "stores", name)
    return plugins.registry("stores").create(name, address.config, address.directory)


@asynccontextmanager
async def open_for_reading(
    address: StoreAddress, plugins: PluginManager
) -> AsyncGenerator[StoreLifecycle, None]:
    """Open a store to look at it, whether or not its run goes on.

    A store of a kind that has no way of its own to be read (`Readable`) is opened plainly.
    """
    store = make_store_at(address, plugins)
    if isinstance(store, Readable):
        store = store.reader()
    await store.open()
    try:
        yield store
    finally:
        await store.close()

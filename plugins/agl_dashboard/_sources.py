"""The runs that the dashboard shows: their directories, stores and indexes, opened when looked at."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from agl_reading import IndexedReading
from agl_records import MARKS_FILE, Marks
from agl_stores import StoreAddress, StoreLayer, has_scheme, locate_store, open_for_reading

from agl_core.clocks import monotonic, new_id
from agl_core.config import RESOLVED, RunConfig, load_config
from agl_core.errors import AglError, ConfigError, StoreError
from agl_core.interfaces import Store
from agl_core.plugins import PluginManager
from agl_core.store import STORE_FILE, without_password
from agl_dashboard._history import RunFiles

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
_PATIENCE_S: Final = 5.0
"""Time that a page waits for the store; then it shows what the run's files say."""
_OPENING: Final = "The store is still being opened: another process may keep it locked"
_IDLE_S: Final = 120.0
"""A run that no page looked at for so long is closed."""
_DEPTH: Final = 3
_MOST_RUNS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """Where the marks of calls are kept, and whether pages may change them."""

    write: bool = False
    file: Path | None = None
    """The file of marks of a store; None: ``marks.db`` in the directory of each run."""


class ShownRun:
    """One run: its files, and its store through an index."""

    def __init__(self, name: str, target: str, plugins: PluginManager, index: Path) -> None:
        """Describe a run; `look` opens it.

        Args:
            name: Name in addresses.
            target: Directory, file or address of its store.
            plugins: The loaded plugins; plugin files of the run are not loaded.
            index: Directory of indexes.
        """
        self.name = name
        self.target = target
        self.problem = ""
        """Why its rollouts cannot be read; empty if they can."""
        self.address: StoreAddress | None = None
        self.config: RunConfig | None = None
        self._plugins = plugins
        self._index = index
        directory = None if has_scheme(target) else Path(target)
        if directory is not None and directory.is_file():
            directory = directory.parent
        self.directory = directory
        self.files = RunFiles(directory) if directory is not None else None
        self._store: Store | None = None
        self._reading: IndexedReading | None = None
        self._stack = AsyncExitStack()
        self._task: asyncio.Task[None] | None = None
        self._looked_at = 0.0
        self._ready = asyncio.Event()
        self._instance = new_id("dash")
        self._version = 0
        self._seen: object = None
        self._changed = asyncio.Condition()

    @property
    def store(self) -> Store:
        """The open store.

        Raises:
            StoreError: it cannot be read.
        """
        if self._store is None:
            raise StoreError(self.problem or f"Run {self.name!r} is not open")
        return self._store

    @property
    def reading(self) -> IndexedReading:
        """The index.

        Raises:
            StoreError: the store cannot be read.
        """
        if self._reading is None:
            raise StoreError(self.problem or f"Run {self.name!r} is not open")
        return self._reading

    @property
    def readable(self) -> bool:
        return self._reading is not None

    @property
    def version(self) -> str:
        """A text that changes with everything that pages show."""
        return f"{self._instance}.{self._version}"

    async def look(self) -> None:
        """Open the run, or keep it open; returns once its newest rows can be shown.

        A page does not wait long for a store that another process keeps locked.
        """
        self._looked_at = monotonic()
        if self._task is None or self._task.done():
            self._ready = asyncio.Event()
            self._task = asyncio.create_task(self._follow(), name=f"agl-dashboard-{self.name}")
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._ready.wait()
                return
        if self._reading is None:
            self.problem = self.problem or _OPENING

    async def changed(self, since: str, timeout_s: float) -> bool:
        """Wait until the version differs; False after `timeout_s`."""
        self._looked_at = monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.version != since)
        return self.version != since

    async def close(self) -> None:
        """Stop following and close the store; idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def _follow(self) -> None:
        try:
            while monotonic() - self._looked_at < _IDLE_S:
                more = await self._refresh()
                await self._announce()
                self._ready.set()
                await asyncio.sleep(0 if more else _INTERVAL_S)
        finally:
            self._ready.set()
            await self._release()

    async def _refresh(self) -> bool:
        try:
            if self.files is not None:
                await asyncio.to_thread(self.files.refresh)
            if self._gone():
                await self._release()
            if self._reading is None:
                await self._open()
            more = await self.reading.refresh()
        except (AglError, OSError) as error:
            self.problem = str(error)
            await self._release()
            return False
        self.problem = ""
        return more

    def _gone(self) -> bool:
        """Return whether another file has the store's name: the run was deleted or begun again."""
        return self._reading is not None and self._identity() != self._opened

    def _identity(self) -> object:
        file = self.address.file if self.address is not None else None
        if file is None:
            return None
        try:
            stat = file.stat()
        except OSError:
            return "missing"
        return (stat.st_dev, stat.st_ino)

    async def _open(self) -> None:
        self.address = address = await asyncio.to_thread(locate_store, self.target, self._plugins)
        address.check_named(f"agl dashboard {address.url}")
        self.config = address.run
        self._opened = self._identity()
        store = await self._stack.enter_async_context(
            open_for_reading(address, self._plugins, for_people=True)
        )
        weights: Mapping[str, float] = self.config.channel_weights if self.config else {}
        index = self._index
        if isinstance(store, StoreLayer) and store.confidential:
            index = Path(self._stack.enter_context(TemporaryDirectory(prefix="agl-index-")))
        reading = IndexedReading(store, index / f"{_digest(address)}.db", weights=weights)
        await reading.open()
        self._stack.push_async_callback(reading.close)
        self._store, self._reading = store, reading

    async def _release(self) -> None:
        self._store = self._reading = None
        stack, self._stack = self._stack, AsyncExitStack()
        try:
            await stack.aclose()
        except (AglError, OSError) as error:
            _log.warning("Closing the store of %s failed: %s", self.name, error)

    async def _announce(self) -> None:
        progress = self._reading.progress if self._reading is not None else None
        files = self.files.version if self.files is not None else 0
        seen = (progress, files, self.problem)
        if seen != self._seen:
            self._seen = seen
            self._version += 1
            async with self._changed:
                self._changed.notify_all()


def _digest(address: StoreAddress) -> str:
    """Return a name for the index of a store."""
    where = str(address.file.resolve()) if address.file is not None else str(address.url)
    return hashlib.sha256(os.fsencode(where)).hexdigest()[:32]


class ShownRuns:
    """All runs below a folder, or the one of a directory, file or address."""

    def __init__(
        self,
        target: str,
        plugins: PluginManager,
        index: Path,
        *,
        writing: Writing | None = None,
    ) -> None:
        """Set what is shown.

        Args:
            target: A folder of runs, a run's directory, a store's file or address.
            plugins: The loaded plugins.
            index: Directory of indexes.
            writing: Where marks are kept; by default pages show those of runs' directories.
        """
        self.target = target
        self.writing = writing or Writing()
        self._make: Callable[[str, str], ShownRun] = lambda name, at: ShownRun(
            name, at, plugins, index
        )
        self._known: dict[str, ShownRun] = {}

    def names(self) -> list[str]:
        """Return the names of the runs that exist now, sorted; known ones stay until closed."""
        return sorted(self._found())

    def get(self, name: str) -> ShownRun | None:
        """Return a run by its name; None if there is none and was none."""
        if name not in self._known:
            target = self._found().get(name)
            if target is None:
                return None
            self._known[name] = self._make(name, target)
        return self._known[name]

    def all(self) -> list[ShownRun]:
        """Return all runs that exist now."""
        return [source for name in self.names() if (source := self.get(name)) is not None]

    def check_marks(self) -> None:
        """Check that there is a place for the marks of what is shown.

        Raises:
            ConfigError: a store is shown without a file of marks, or several runs with one.
        """
        path = Path(self.target).expanduser()
        store = has_scheme(self.target) or (path.is_file() and not is_run(path.parent))
        if self.writing.write and self.writing.file is None and store:
            raise ConfigError(
                f"{without_password(self.target)!r} is a store without a run's directory: say where "
                f"marks are kept with --marks FILE"
            )
        if self.writing.file is not None and path.is_dir() and not is_run(path):
            raise ConfigError(
                f"--marks names one file, but {self.target!r} is a folder of runs: each keeps its "
                f"marks as {MARKS_FILE} in its directory"
            )

    def marks(self, run: ShownRun) -> Marks | None:
        """Return the marks of a run; None if it has no place for them."""
        if self.writing.file is not None:
            return Marks(self.writing.file)
        kept = run.directory is not None and is_run(run.directory)
        return Marks(run.directory / MARKS_FILE) if kept and run.directory is not None else None

    async def close(self) -> None:
        for source in self._known.values():
            await source.close()

    def _found(self) -> dict[str, str]:
        if has_scheme(self.target):
            return {"store": self.target}
        path = Path(self.target).expanduser()
        if not path.is_dir():
            return {path.resolve().parent.name or "store": str(path)}
        if is_run(path):
            inside = {f"{path.resolve().name}/{name}": at for name, at in _below(path, 1)}
            return {path.resolve().name: str(path), **inside}
        return dict(_below(path, _DEPTH))


def is_run(path: Path) -> bool:
    """Return whether a directory is a run's, or holds a store."""
    return any((path / name).is_file() for name in (RESOLVED, STORE_FILE))


def _below(path: Path, depth: int, prefix: str = "") -> Iterator[tuple[str, str]]:
    try:
        folders = sorted(each for each in path.iterdir() if each.is_dir() and not each.is_symlink())
    except OSError:
        return
    for folder in folders[:_MOST_RUNS]:
        name = f"{prefix}{folder.name}"
        if is_run(folder) and folder.parent.name != "checkpoints":
            yield name, str(folder)
        if depth > 1 and folder.name != "checkpoints":
            yield from _below(folder, depth - 1, f"{name}/")


def configuration(directory: Path) -> RunConfig | None:
    """Return a run's configuration; None if it cannot be read."""
    try:
        return load_config(directory / RESOLVED)
    except (AglError, OSError):
        return None

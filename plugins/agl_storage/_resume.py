"""The checkpoint that a run continues from, where its storage has a newer one than its directory."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from agl_core.config import RunConfig
from agl_core.errors import ConfigError
from agl_core.training import config_digest
from agl_storage._local import CHECKPOINTS, adopt, checkpoints, is_checkpoint
from agl_storage._manifest import MANIFEST, DamagedError, Manifest, StorageError
from agl_storage._remote import Remote

_log = logging.getLogger(__name__)

_HALF: Final = "its upload did not end"


def stored(remote: Remote) -> tuple[dict[str, Manifest], dict[str, str]]:
    """Return the manifests of a run's checkpoints, newest first, and what is wrong with others."""
    folder = remote.below(CHECKPOINTS)
    sizes = folder.sizes()
    names = {path.partition("/")[0] for path in sizes}
    found: dict[str, Manifest] = {}
    wrong: dict[str, str] = {}
    for name in sorted(filter(is_checkpoint, names), reverse=True):
        start = f"{name}/"
        own = {path.removeprefix(start): n for path, n in sizes.items() if path.startswith(start)}
        try:
            found[name] = _whole(folder.below(name), own)
        except DamagedError as error:
            wrong[name] = str(error)
    return found, wrong


def _whole(checkpoint: Remote, sizes: Mapping[str, int]) -> Manifest:
    if MANIFEST not in sizes:
        raise DamagedError(f"it has no {MANIFEST}: {_HALF}")
    manifest = checkpoint.manifest()
    for name, facts in manifest.files.items():
        if sizes.get(name) != facts.size:
            what = f"has {sizes[name]} bytes" if name in sizes else "is missing"
            raise DamagedError(f"{name} {what}, and had {facts.size} bytes when stored")
    return manifest


class Resumption:
    """Fetches what a run needs to continue on this machine."""

    def __init__(self, remote: Remote, directory: Path, config: RunConfig) -> None:
        """Look into the storage.

        Args:
            remote: The run's folder in the storage.
            directory: The run's directory.
            config: The run's configuration.

        Raises:
            StorageError: the storage fails.
        """
        self._remote, self._config = remote, config
        self._folder = directory / CHECKPOINTS
        self._local = {path.name for path in checkpoints(directory)}
        self.manifests, self._wrong = stored(remote)

    def check(self) -> None:
        """Check that the run may start.

        Raises:
            ConfigError: the run is a new one, but the storage has one of that name, or the
                storage's has other settings.
        """
        here, url = self._config, self._remote.url
        if not self.manifests:
            return
        if not here.train.resume:
            raise ConfigError(
                f"There are checkpoints of a run {here.name!r} in {url} already: set "
                f"train.resume = true to continue from the newest, or choose another name"
            )
        name, manifest = next(iter(self.manifests.items()))
        own = config_digest(here, manifest.facts.phase, anywhere=True)
        if manifest.facts.settings != own:
            raise ConfigError(
                f"Checkpoint {url}/{CHECKPOINTS}/{name} was written with other settings, so "
                f"resuming would not continue that run: restore its configuration "
                f"({url}/config.json), or start under another run name"
            )

    def fetch(self) -> Mapping[str, Manifest]:
        """Fetch the newest whole checkpoint, if it is newer than all local ones, and the best one.

        The rest of uploads that did not end is removed.

        Returns:
            The manifests of whole checkpoints by name.

        Raises:
            StorageError: the storage fails, or there are checkpoints and all are damaged.
            ConfigError: the disk cannot take them.
        """
        for name, reason in self._wrong.items():
            self._warn(name, reason)
            if _HALF in reason:
                self._remote.below(f"{CHECKPOINTS}/{name}").remove()
        if not self._config.train.resume:
            return self.manifests
        newest = max(self._local, default="")
        for name in [each for each in self.manifests if each > newest]:
            if self._fetch_one(name):
                break
        else:
            damaged = any(_HALF not in reason for reason in self._wrong.values())
            if not self._local and damaged:
                raise StorageError(
                    f"All checkpoints in {self._remote.url} are damaged: restore one, or start "
                    f"under another run name"
                )
        scored = {n: m.facts.score for n, m in self.manifests.items() if m.facts.score is not None}
        best = max(sorted(scored), key=lambda name: scored[name] or 0.0, default=None)
        if best is not None and best not in self._local:
            self._fetch_one(best)
        return self.manifests

    def _fetch_one(self, name: str) -> bool:
        """Fetch a checkpoint; return whether it is whole."""
        manifest = self.manifests[name]
        source = self._remote.below(f"{CHECKPOINTS}/{name}")
        megabytes = manifest.size / 1e6
        _log.warning("Fetching %s (%d files, %.1f MB)", source.url, len(manifest.files), megabytes)
        partial = self._folder / f".{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            source.fetch(manifest, partial)
            adopt(partial, self._config)
        except DamagedError as error:
            self._wrong[name] = str(error)
            del self.manifests[name]
            self._warn(name, str(error))
            shutil.rmtree(partial, ignore_errors=True)
            return False
        target = self._folder / name
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        self._local.add(name)
        return True

    def _warn(self, name: str, reason: str) -> None:
        _log.warning(
            "Checkpoint %s/%s/%s is skipped: %s", self._remote.url, CHECKPOINTS, name, reason
        )

"""A folder of a storage: what is written to it, read from it and removed from it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from agl_core.errors import AglError, ConfigError, MissingExtraError
from agl_core.files import make_private_directory, restrict
from agl_storage._manifest import (
    MANIFEST,
    DamagedError,
    FileFacts,
    Manifest,
    StorageError,
    Unit,
    decode,
    facts_of,
    manifest_of,
)

_S3: Final = ("s3", "s3a")
_LOGIN: Final = re.compile(r"://[^/\s]*@")


class Remote:
    """A folder of a storage. All methods block and raise `StorageError` if the storage fails."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """Make the file system of an address, without connecting.

        Raises:
            ConfigError: the scheme or an option is wrong.
            MissingExtraError: the library of the scheme is not installed.
        """
        address = url.rstrip("/")
        self.url = hidden(address)
        self.scheme = address.partition("://")[0].lower()
        given = {"skip_instance_cache": True, "use_listings_cache": False, **(options or {})}
        if self.scheme in ("file", "local"):
            given.setdefault("auto_mkdir", True)
        try:
            url_to_fs: Callable[..., tuple[Any, str]] = import_module("fsspec.core").url_to_fs
        except ImportError as error:
            raise MissingExtraError("storage", needs="fsspec", extra="storage") from error
        try:
            self._fs, path = url_to_fs(f"{self.scheme}{address[len(self.scheme) :]}", **given)
        except ImportError as error:
            if self.scheme in _S3:
                raise MissingExtraError("storage", needs="s3fs", extra="storage") from error
            raise ConfigError(f"The storage {self.url!r} needs a library: {error}") from error
        except (ValueError, TypeError) as error:
            raise ConfigError(f"The storage {self.url!r} cannot be used: {error}") from error
        self._root = path.rstrip("/")

    def below(self, name: str) -> Remote:
        """Return a folder in this one."""
        inner = object.__new__(type(self))
        inner.url, inner.scheme = f"{self.url}/{name}", self.scheme
        inner._fs, inner._root = self._fs, f"{self._root}/{name}"
        return inner

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""
        with self._failing(name):
            self._fs.pipe_file(self._path(name), data)

    def upload(self, name: str, file: Path) -> None:
        """Write a local file, in parts if it is large."""
        with self._failing(name):
            self._fs.put_file(str(file), self._path(name))

    def read(self, name: str) -> bytes | None:
        """Return a small file's content; None if there is no such file."""
        with self._failing(name):
            try:
                return bytes(self._fs.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

    def sizes(self) -> dict[str, int]:
        """Return the size of every file by its path below this folder."""
        with self._failing(""):
            self._fs.invalidate_cache()
            try:
                found: dict[str, dict[str, Any]] = self._fs.find(self._root, detail=True)
            except FileNotFoundError:
                return {}
        start = len(self._root.lstrip("/")) + 1
        return {
            path.lstrip("/")[start:]: int(facts.get("size") or 0) for path, facts in found.items()
        }

    def put(self, unit: Unit, *, may_end: Callable[[], None] | None = None) -> Manifest:
        """Store files, and at last their manifest.

        Args:
            unit: The files.
            may_end: Called before the manifest is written; raises if it may not be.
        """
        folder = self.below(unit.place) if unit.place else self
        if unit.place:
            folder.remove()
        else:
            folder.remove_file(MANIFEST)
        facts: dict[str, FileFacts] = {}
        for name, source in unit.files.items():
            facts[name] = facts_of(source)
            if isinstance(source, bytes):
                folder.write(name, source)
                continue
            folder.upload(name, source)
        if may_end is not None:
            may_end()
        manifest = manifest_of(facts, unit.facts)
        folder.write(MANIFEST, manifest.encode())
        return manifest

    def manifest(self) -> Manifest:
        """Return the manifest of this folder.

        Raises:
            DamagedError: there is none, or it cannot be read.
        """
        data = self.read(MANIFEST)
        if data is None:
            raise DamagedError(f"it has no {MANIFEST}: its upload did not end")
        return decode(data)

    def fetch(self, manifest: Manifest, target: Path) -> None:
        """Fetch the files of a manifest into a new directory, and check them.

        Raises:
            DamagedError: a file is missing or not as it was stored; `target` is then incomplete.
            ConfigError: the disk cannot take them.
        """
        make_private_directory(target)
        for name, expected in manifest.files.items():
            file = target / name
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                self._fetch(name, file)
                found = facts_of(file)
            except OSError as error:
                raise ConfigError(f"Cannot write {str(file)!r}: {error.strerror}") from error
            if found.size != expected.size:
                raise DamagedError(
                    f"{name} has {found.size} bytes, but {expected.size} when it was stored"
                )
            if found != expected:
                raise DamagedError(
                    f"{name} has the sha256 {found.sha256}, but {expected.sha256} when it was "
                    f"stored"
                )
        restrict(target)

    def get(self, name: str, file: Path) -> None:
        """Fetch a file."""
        with self._failing(name):
            self._fs.get_file(self._path(name), str(file))

    def _fetch(self, name: str, file: Path) -> None:
        with self._failing(name):
            try:
                self._fs.get_file(self._path(name), str(file))
            except FileNotFoundError as error:
                raise DamagedError(f"{name} is missing") from error

    def remove(self) -> None:
        """Remove this folder, its manifest first; do nothing if it is not there."""
        self.remove_file(MANIFEST)
        with self._failing(""), suppress(FileNotFoundError):
            self._fs.rm(self._root, recursive=True)

    def remove_file(self, name: str) -> None:
        """Remove a file; do nothing if it is not there."""
        with self._failing(name), suppress(FileNotFoundError):
            path = self._path(name)
            if self._fs.exists(path):
                self._fs.rm_file(path)

    def clear_uploads(self) -> int:
        """End what processes that were killed left of multipart uploads below this folder.

        Storages other than S3 have none.
        """
        if self.scheme not in _S3:
            return 0
        bucket, _, prefix = self._root.partition("/")
        with self._failing(""):
            answer = self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/")
            uploads: list[dict[str, Any]] = answer.get("Uploads") or []
            for upload in uploads:
                with suppress(FileNotFoundError):
                    self._fs.abort_mpu(bucket, upload["Key"], upload["UploadId"])
        return len(uploads)

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)

    @contextmanager
    def _failing(self, name: str) -> Generator[None]:
        where = f"{self.url}/{name}" if name else self.url
        try:
            yield
        except AglError:
            raise
        except Exception as error:  # the library of every scheme has errors of its own
            raise StorageError(f"Storage {where}: {explained(error)}") from error


def hidden(url: str) -> str:
    """Replace user name and password in an address."""
    return _LOGIN.sub("://***@", url)


def explained(error: Exception) -> str:
    """Return what is wrong with a storage, and what to do."""
    kind = type(error).__name__
    text = " ".join(str(error).split()) or kind
    if isinstance(error, FileNotFoundError):
        return f"there is no such bucket or folder ({text}): create it, or correct the address"
    if isinstance(error, PermissionError):
        return f"it refuses ({text}): give this user the right to list, read, write and delete"
    if "Credentials" in kind:
        return f"there are no credentials ({text}): set those of the storage in the environment"
    if isinstance(error, NotImplementedError):
        return "this scheme can only be read: name another address"
    return hidden(f"{kind}: {text}")

"""What is stored together: files, and a manifest that is written when all of them are there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from agl_core.errors import AglError

MANIFEST: Final = "manifest.json"
VERSION: Final = 1
_PIECE_BYTES: Final = 1 << 20


class StorageError(AglError):
    """A storage is down, refuses or does not answer; trying again later may help."""


class DamagedError(AglError):
    """What is stored does not fit its manifest."""


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a file has to be to count as whole."""

    size: int
    sha256: str


class StoredFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a checkpoint before it is fetched."""

    settings: str = ""
    """`config_digest` of the run's settings, without folders."""
    identity: str = ""
    """Digest of the state; equal for a checkpoint and its copy on another machine."""
    phase: int = 0
    score: float | None = None
    """Mean of its evaluation, if it has one."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a checkpoint, an export or a run, by their path below the manifest's folder."""

    version: int = VERSION
    created: str
    """ISO 8601 in UTC, by the clock of the machine that wrote it; nothing depends on it."""
    files: dict[str, FileFacts]
    facts: StoredFacts = StoredFacts()

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Local files that are stored together."""

    place: str
    """Path of their folder below the run; empty for the run's own."""
    files: dict[str, Path | bytes]
    facts: StoredFacts = field(default_factory=StoredFacts)
    mark: str = ""
    """Changes when the content does."""


def manifest_of(files: dict[str, FileFacts], facts: StoredFacts) -> Manifest:
    """Return the manifest of files that are stored."""
    return Manifest(created=datetime.now(UTC).isoformat(), files=files, facts=facts)


def decode(data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        DamagedError: it is none, is of a later release, or names files outside its folder.
    """
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, ValueError) as error:
        raise DamagedError(f"its {MANIFEST} cannot be read ({error})") from error
    if manifest.version > VERSION:
        raise DamagedError(f"its {MANIFEST} is of a later release (version {manifest.version})")
    for name in manifest.files:
        path = PurePosixPath(name)
        outside = path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name
        if outside or not path.parts:
            raise DamagedError(f"its {MANIFEST} names the file {name!r}")
    return manifest


def facts_of(source: Path | bytes) -> FileFacts:
    """Return size and digest of a file or of bytes."""
    if isinstance(source, bytes):
        return FileFacts(size=len(source), sha256=hashlib.sha256(source).hexdigest())
    digest, size = hashlib.sha256(), 0
    with source.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
    return FileFacts(size=size, sha256=digest.hexdigest())

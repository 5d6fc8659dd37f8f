"""Checksums of a checkpoint's files: what was written is what is read, or an error names the file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from agl_core.errors import TrainingError

STATE: Final = "state.json"
_PIECE_BYTES: Final = 1 << 20
_OF_STATE: Final = "state.json.sha256"
"""Of the file that holds all others; in the form of the command sha256sum."""


def digest_of(file: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    piece = memoryview(bytearray(_PIECE_BYTES))
    with file.open("rb", buffering=0) as stream:
        while size := stream.readinto(piece):
            digest.update(piece[:size])
    return digest.hexdigest()


def digests(checkpoint: Path) -> dict[str, str]:
    """sha256 by path, of every file but the state's."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    named = {path.relative_to(checkpoint).as_posix(): path for path in files}
    return {name: digest_of(path) for name, path in named.items() if name not in (STATE, _OF_STATE)}


def state_checksum(checkpoint: Path, data: bytes) -> tuple[Path, bytes]:
    """The file beside a checkpoint's state, and what it holds."""
    line = f"{hashlib.sha256(data).hexdigest()}  {STATE}\n"
    return checkpoint / _OF_STATE, line.encode()


def check_state(checkpoint: Path, data: bytes) -> None:
    """Check the state's own bytes; older versions wrote no checksum of them.

    Raises:
        TrainingError: they are not those that were written.
    """
    file, line = state_checksum(checkpoint, data)
    if file.is_file() and file.read_bytes() != line:
        raise damaged(checkpoint, f"{STATE} is not as it was written")


def check_files(checkpoint: Path, files: dict[str, str]) -> None:
    """Check the files of a checkpoint against what its state says of them.

    Raises:
        TrainingError: one is missing or has other bytes; names it, and the checkpoint before.
    """
    for name, digest in files.items():
        path = checkpoint / name
        if not path.is_file():
            raise damaged(checkpoint, f"{name} is missing")
        found = digest_of(path)
        if found != digest:
            size = path.stat().st_size
            raise damaged(
                checkpoint,
                f"{name} ({size} bytes) has the sha256 {found}, but {digest} when it was written",
            )


def damaged(checkpoint: Path, what: str) -> TrainingError:
    """The error of a checkpoint that cannot be used, with the one to use in its place."""
    older = [
        path
        for path in sorted(checkpoint.parent.glob("step-*"))
        if path.name < checkpoint.name and (path / STATE).is_file()
    ]
    fix = "there is none before it: restore the file, or train anew under another run name"
    if older:
        fix = f"the one before it is {older[-1]}: delete {checkpoint.name} to resume from there"
    return TrainingError(f"Checkpoint {checkpoint} is damaged: {what}; {fix}")

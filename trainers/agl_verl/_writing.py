"""Directories of weights: errors while writing them, and their sha256."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from agl_core.errors import AglError, EngineError, TrainingError
from agl_verl._driver import cause_of


@contextmanager
def writing(directory: Path) -> Generator[None]:
    """Add the directory and its free disk space to a worker's write error.

    Raises:
        TrainingError: a worker could not write its files.
    """
    from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415

    try:
        yield
    except RayTaskError as error:
        cause = cause_of(error)
        if isinstance(cause, (AglError, RayError)):
            raise
        left = shutil.disk_usage(directory).free / 1e6
        raise TrainingError(
            f"verl could not write the checkpoint {directory}: {type(cause).__name__}: {cause}. "
            f"{left:.1f} MB are left on its file system: make room there, or allow larger files "
            f"(ulimit -f), and continue from the checkpoint before it with train.resume = true"
        ) from error


def files_digest(model: str) -> str:
    """Return the sha256 over a directory's weight files, in order of names.

    Raises:
        EngineError: the model is not a local directory with weights.
    """
    files = sorted(Path(model).glob("*.safetensors"))
    if not files:
        raise EngineError(f"{model!r} holds no *.safetensors to take a fingerprint of")
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\0".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()

"""What a run's directory holds that belongs into the storage."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

from agl_core.config import RESOLVED, RunConfig
from agl_core.training import config_digest, read_state
from agl_storage._manifest import StoredFacts, Unit

CHECKPOINTS: Final = "checkpoints"
_PREFIX: Final = "step-"
_STATE: Final = "state.json"
_OF_STATE: Final = "state.json.sha256"
_PHASE: Final = "-phase-"
_REPORT: Final = "report.json"
_PROMPTS: Final = "prompts"
SNAPSHOT: Final = ".storage"
"""Folder in the run's directory with the checkpoint that is being uploaded."""


def is_checkpoint(name: str) -> bool:
    """Return whether a folder has the name of a checkpoint."""
    return name.startswith(_PREFIX)


def checkpoints(directory: Path) -> list[Path]:
    """Return the complete checkpoints of a run's directory, newest first."""
    folder = directory / CHECKPOINTS
    if not folder.is_dir():
        return []
    named = (path for path in folder.iterdir() if is_checkpoint(path.name))
    return sorted((path for path in named if (path / _STATE).is_file()), reverse=True)


def checkpoint_mark(checkpoint: Path) -> str:
    """Return the digest of a checkpoint's state, the same on every machine.

    Raises:
        OSError: the checkpoint is gone.
        AglError: it is damaged.
    """
    state = read_state(checkpoint)
    data = (checkpoint / _STATE).read_bytes()
    return hashlib.sha256(data.replace(state.config_digest.encode(), b"")).hexdigest()


def checkpoint_unit(checkpoint: Path, snapshot: Path, config: RunConfig) -> Unit:
    """Return a checkpoint to upload, which may be deleted meanwhile: `snapshot` links its files.

    Raises:
        OSError: the checkpoint is gone.
        AglError: it is damaged.
    """
    shutil.rmtree(snapshot, ignore_errors=True)
    shutil.copytree(checkpoint, snapshot, copy_function=_link)
    state = read_state(snapshot)
    scores = {
        each.score.mean
        for each in state.evaluations[-1:]
        if each.step == state.step and (each.phase is not None) == (_PHASE in checkpoint.name)
    }
    facts = StoredFacts(
        settings=config_digest(config, state.phase, anywhere=True),
        identity=checkpoint_mark(snapshot),
        phase=state.phase,
        score=next(iter(scores), None),
    )
    paths = sorted(path for path in snapshot.rglob("*") if path.is_file())
    files: dict[str, Path | bytes] = {p.relative_to(snapshot).as_posix(): p for p in paths}
    place = f"{CHECKPOINTS}/{checkpoint.name}"
    return Unit(place=place, files=files, facts=facts, mark=facts.identity)


def run_unit(directory: Path, config: bytes | None) -> Unit:
    """Return the run's own files: configuration, report and prompts.

    Args:
        directory: The run's.
        config: The configuration without secrets; None: as it is in the directory.
    """
    files: dict[str, Path | bytes] = {} if config is None else {RESOLVED: config}
    named = [directory / RESOLVED] if config is None else []
    paths = [*named, directory / _REPORT, *sorted((directory / _PROMPTS).rglob("*"))]
    for path in paths:
        if path.is_file():
            files[path.relative_to(directory).as_posix()] = path.read_bytes()
    digest = hashlib.sha256()
    for name, data in files.items():
        assert isinstance(data, bytes)
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return Unit(place="", files=files, mark=digest.hexdigest())


def folder_unit(directory: Path, place: str = "") -> Unit:
    """Return all files of a folder."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return Unit(place=place, files={p.relative_to(directory).as_posix(): p for p in paths})


def adopt(checkpoint: Path, config: RunConfig) -> None:
    """Let a fetched checkpoint, whose folders were others, be resumed with these settings."""
    state = read_state(checkpoint)
    here = config_digest(config, state.phase)
    if here == state.config_digest:
        return
    file = checkpoint / _STATE
    data = file.read_bytes().replace(state.config_digest.encode(), here.encode())
    file.write_bytes(data)
    line = f"{hashlib.sha256(data).hexdigest()}  {_STATE}\n"
    (checkpoint / _OF_STATE).write_text(line, encoding="utf-8")


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)

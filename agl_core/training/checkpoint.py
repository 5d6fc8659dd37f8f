"""Checkpoints: one directory per step, written under a temporary name and renamed when complete."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from agl_core.config import RunConfig
from agl_core.errors import ConfigError, TrainingError
from agl_core.files import make_private_directory, restrict, write_private
from agl_core.interfaces import Engine
from agl_core.types import Evaluation, PromptTemplate, StepReport
from agl_core.types.json_text import json_text, json_value
from agl_core.types.run import Tuned

_PREFIX = "step-"
POLICIES = "policies"


_MAY_DIFFER: Final[dict[str, Any]] = {
    **dict.fromkeys(("directory", "store", "gateway", "eval", "plugins", "trackers"), True),
    "tasks": {"val"},
    "train": {
        "steps",
        "resume",
        "eval_every",
        "checkpoint_every",
        "keep_checkpoints",
        "keep_tokens",
    },
    "rollout": {"local", "concurrency", "lease_s", "resume"},
}
"""Settings that may differ between a run and its resumption, as the sections of plugins may."""


_FOLDERS: Final = re.compile(r'"(?:/|[A-Za-z]:)[^"]*[/\\](?=[^"/\\\s]*")')
"""The beginning of a JSON text that is an absolute path, up to its last part."""


def config_digest(config: RunConfig, phase: int, *, anywhere: bool = False) -> str:
    """Return a digest of the settings that must be equal in a run and its resumption in a phase.

    The number of steps of this phase may differ, and later phases. With `anywhere`, the folders of
    absolute paths may differ too.
    """
    *ended, begun = [*config.phases[: phase + 1]] or [None]
    phases = [*ended, *([begun.model_copy(update={"steps": None})] if begun else ())]
    may_differ = {**_MAY_DIFFER, **dict.fromkeys(config.sections, True)}
    text = config.model_copy(update={"phases": phases}).model_dump_json(exclude=may_differ)
    text = _FOLDERS.sub('"', text) if anywhere else text
    return hashlib.sha256(text.encode()).hexdigest()


class CheckpointState(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a run needs, besides the weights, to continue exactly where it stopped."""

    step: int
    """Number of finished steps."""
    phase: int = 0
    """Number of the phase to run or to continue."""
    config_digest: str
    """Digest of every setting that changes the results; resuming requires the same digest."""
    versions: dict[str, int]
    """Weight versions by policy name."""
    prompts: dict[str, PromptTemplate] = {}
    """The prompts that were served, by name."""
    sha256_before: dict[str, str]
    """Fingerprints of the weights at the start of the run, by policy name."""
    steps: list[StepReport] = []
    evaluations: list[Evaluation] = []
    tuned: dict[int, Tuned] = {}
    """Results of the finished prompt phases by number."""
    lost: dict[str, int] = {}
    calls: int = 0
    newest_rollout: str = ""
    """Id of the newest rollout at the time of the checkpoint. Later rollouts of the run belong to
    steps that are lost on resuming."""
    ahead: int = 0
    """Number of earlier rollouts that were queued for later steps, which are lost as well."""
    engine: str = ""
    """Name of the engine that wrote the weights and can export them."""
    files: dict[str, str] = {}
    """sha256 of each file of the checkpoint by path, except of the state file itself."""


def name_of(step: int, phase: int | None = None) -> str:
    """Return the name of the checkpoint after a step, or after a prompt phase."""
    return f"{_PREFIX}{step:06d}" + ("" if phase is None else f"-phase-{phase:02d}")


class Checkpoints:
    """The checkpoints of one run, newest last."""

    def __init__(self, directory: Path, *, keep: int, engine: str = "") -> None:
        """Configure the directory of the checkpoints.

        Args:
            directory: Parent of the step directories; created when missing.
            keep: Number of newest checkpoints to keep; the best one is always kept.
            engine: Name of the engine that writes them.
        """
        self._directory = directory
        self._keep = keep
        self._engine = engine

    def all(self) -> list[Path]:
        """Return the complete checkpoints by ascending step."""
        return [path for path in self._written() if (path / STATE).is_file()]

    def _written(self) -> list[Path]:
        """Return all checkpoints, including those whose state file was deleted later."""
        if not self._directory.is_dir():
            return []
        return sorted(path for path in self._directory.iterdir() if _named(path))

    async def save(
        self,
        state: CheckpointState,
        *,
        engine: Engine,
        policies: Sequence[str],
        best: Path | None,
        phase: int | None = None,
    ) -> Path:
        """Write a checkpoint of `policies` and delete all but the newest `keep` ones and `best`.

        Only the user can access the files. The state has the checksums of the other files.

        Args:
            state: All but the weights.
            engine: Has the weights.
            policies: Names of the trained policies; none in a run that only tunes prompts.
            best: The best checkpoint so far.
            phase: Number of the prompt phase that has ended; None after a step.
        """
        target = self._directory / name_of(state.step, phase)
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        make_private_directory(partial)
        for policy in policies:
            await engine.save(policy, str(partial / POLICIES / policy))
        restrict(partial)
        files = await asyncio.to_thread(digests, partial)
        whole = msgspec.structs.replace(state, engine=self._engine, files=files)
        data = json_text(whole, indent=2).encode()
        write_private(partial / STATE, data)
        write_private(*state_checksum(partial, data))
        shutil.rmtree(target, ignore_errors=True)
        os.replace(partial, target)  # noqa: PTH105 (Path.replace is the same call)
        self._prune(keep_also=best)
        return target

    def starting_point(
        self, *, resume: bool, digest: Callable[[int], str]
    ) -> tuple[Path, CheckpointState] | None:
        """Return the checkpoint that a run starts from; None if it starts from the first step.

        Args:
            resume: Whether the run may start from a checkpoint.
            digest: Returns the `config_digest` of the run's settings in a phase.

        Raises:
            ConfigError: `resume` is False but there are checkpoints, or the newest one was written
                with other settings.
            TrainingError: the newest checkpoint's state is missing or damaged.
        """
        if resume:
            return self.latest(digest)
        if self._written():
            raise ConfigError(
                f"There are checkpoints in {self._directory} already: set train.resume = true to "
                f"continue from the newest, or choose another name"
            )
        return None

    def latest(self, digest: Callable[[int], str]) -> tuple[Path, CheckpointState] | None:
        """Return the newest checkpoint, or None if there is none.

        Raises:
            ConfigError: it was written with other settings.
            TrainingError: its state is missing or damaged.
        """
        paths = self._written()
        if not paths:
            return None
        path = paths[-1]
        state = read_state(path)
        if state.config_digest != digest(state.phase):
            raise ConfigError(
                f"Checkpoint {path} was written with other settings, so resuming would not "
                f"continue that run: restore its config.json, or start under another run name"
            )
        return path, state

    def _prune(self, *, keep_also: Path | None) -> None:
        for path in self.all()[: -self._keep]:
            if path != keep_also:
                shutil.rmtree(path)


def read_state(path: Path) -> CheckpointState:
    """Read a checkpoint's state without checking the other files, which `verify` does.

    Raises:
        TrainingError: the directory is not a checkpoint, or its state is missing or damaged. The
            message then names the checkpoint before it.
    """
    if not path.is_dir() or not (_named(path) or (path / STATE).is_file()):
        raise TrainingError(
            f"{path} is no checkpoint: name one such as <run>/checkpoints/step-000010"
        )
    try:
        data = (path / STATE).read_bytes()
        check_state(path, data)
        return msgspec.convert(json_value(data.decode()), CheckpointState, str_keys=True)
    except FileNotFoundError as error:
        raise damaged(path, f"{STATE} is missing") from error
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise damaged(path, f"{STATE} cannot be read ({error})") from error


async def verify(path: Path) -> CheckpointState:
    """Read a checkpoint's state and check every file against its checksum.

    Raises:
        TrainingError: a file is missing or damaged. The message names it and the checkpoint before.
    """
    state = read_state(path)
    await asyncio.to_thread(check_files, path, state.files)
    return state


def checkpoint_of(weights: Path) -> Path | None:
    """Return the checkpoint that contains a policy's directory; None if no checkpoint does."""
    checkpoint = weights.resolve().parent.parent
    inside = weights.resolve().parent.name == POLICIES
    return checkpoint if inside and (_named(checkpoint) or (checkpoint / STATE).is_file()) else None


def _named(path: Path) -> bool:
    """Return whether a directory has the name of a checkpoint."""
    return path.name.startswith(_PREFIX)


STATE: Final = "state.json"
_PIECE_BYTES: Final = 1 << 20
_OF_STATE: Final = "state.json.sha256"
"""Name of the file with the state file's checksum, in the format of the command sha256sum."""


def digest_of(file: Path) -> str:
    """Return the sha256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    piece = memoryview(bytearray(_PIECE_BYTES))
    with file.open("rb", buffering=0) as stream:
        while size := stream.readinto(piece):
            digest.update(piece[:size])
    return digest.hexdigest()


def digests(checkpoint: Path) -> dict[str, str]:
    """Return the sha256 of every file by path, except of the state file and its checksum file."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    named = {path.relative_to(checkpoint).as_posix(): path for path in files}
    return {name: digest_of(path) for name, path in named.items() if name not in (STATE, _OF_STATE)}


def state_checksum(checkpoint: Path, data: bytes) -> tuple[Path, bytes]:
    """Return path and content of the file with the checksum of a checkpoint's state."""
    line = f"{hashlib.sha256(data).hexdigest()}  {STATE}\n"
    return checkpoint / _OF_STATE, line.encode()


def check_state(checkpoint: Path, data: bytes) -> None:
    """Check the state's bytes against their checksum, which older versions did not write.

    Raises:
        TrainingError: the bytes do not match the checksum.
    """
    file, line = state_checksum(checkpoint, data)
    if file.is_file() and file.read_bytes() != line:
        raise damaged(checkpoint, f"{STATE} is not as it was written")


def check_files(checkpoint: Path, files: dict[str, str]) -> None:
    """Check the files of a checkpoint against the checksums in its state.

    Raises:
        TrainingError: a file is missing or damaged. The message names it and the checkpoint before.
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
    """Return the error for a damaged checkpoint, which names the checkpoint to use instead."""
    older = [
        path
        for path in sorted(checkpoint.parent.glob("step-*"))
        if path.name < checkpoint.name and (path / STATE).is_file()
    ]
    fix = "there is none before it: restore the file, or train again under another run name"
    if older:
        fix = f"the one before it is {older[-1]}: delete {checkpoint.name} to resume from there"
    return TrainingError(f"Checkpoint {checkpoint} is damaged: {what}; {fix}")

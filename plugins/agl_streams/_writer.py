"""Writing the token streams of a run during the run."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from agl_core.config import RunConfig, resolve_policies
from agl_core.files import make_private_directory, write_private
from agl_core.types import Batch, Losses, Trajectory, Update
from agl_streams._file import stream_bytes
from agl_streams._folder import SUFFIX, TOKENIZERS, StreamFolder, step_name, tokenizer_source

_log = logging.getLogger(__name__)

LOST: Final = "token_streams_not_written"


class StreamWriter:
    """Writes a step's batches after their updates, and keeps those of the newest steps.

    What cannot be written is counted as `LOST` and logged once.
    """

    def __init__(self, run: Path, *, keep: int, models: Mapping[str, str]) -> None:
        """Write nothing yet.

        Args:
            run: The run's directory.
            keep: Number of steps to keep; 0 only forgets those of an earlier try.
            models: Directory or name of the weights by policy.
        """
        self._folder = StreamFolder(run)
        self._keep = keep
        self._models = models
        self._rollouts: dict[str, str] = {}
        self._batches: dict[str, tuple[Batch, list[str]]] = {}
        self._begun = False
        self._warned = False

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Return the writer of a run."""
        policies = resolve_policies(config, training=True)
        return cls(
            Path(config.directory) / config.name,
            keep=config.train.keep_tokens,
            models={policy.name: policy.model for policy in policies},
        )

    def joined(self, trajectories: Sequence[Trajectory]) -> None:
        """Remember to which rollout calls belong."""
        if self._keep:
            for path in trajectories:
                self._rollouts.update((call.call_id, path.rollout_id) for call in path.calls)

    def built(self, batch: Batch, step: int) -> None:
        """Keep a batch until its update; a run's first batch forgets later steps."""
        if not self._begun:
            self._begun = True
            self._attempt(lambda: self._forget(step + 1), None)
        if self._keep:
            rollouts = [self._rollouts.get(call_id, "") for call_id in batch.call_ids]
            self._batches[batch.policy] = batch, rollouts

    def applied(self, update: Update, step: int, losses: Losses) -> None:
        """Write the batch of an update."""
        self._rollouts.clear()
        if (kept := self._batches.pop(update.policy, None)) is not None:
            batch, rollouts = kept
            self._attempt(lambda: self._write(batch, update, rollouts, step + 1), losses)

    def _attempt(self, work: Callable[[], None], losses: Losses | None) -> None:
        try:
            work()
        except OSError as error:
            if losses is not None:
                losses.add(LOST)
            if not self._warned:
                self._warned = True
                _log.warning(
                    "Token streams of the run are not written to %s: %s; the run continues, and "
                    "further failures are only counted, as %s",
                    self._folder.path,
                    error,
                    LOST,
                )

    def _write(self, batch: Batch, update: Update, rollouts: Sequence[str], step: int) -> None:
        folder = self._folder.path / step_name(step)
        make_private_directory(folder)
        file = folder / f"{batch.policy}{SUFFIX}"
        partial = file.with_name(f".{file.name}.partial")
        write_private(partial, stream_bytes(batch, update, rollouts))
        os.replace(partial, file)  # noqa: PTH105 (Path.replace is the same call)
        for old in list(self._folder.steps().values())[: -self._keep]:
            shutil.rmtree(old)
        self._copy_tokenizers()

    def _forget(self, step: int) -> None:
        """Delete the streams of a step and of later ones, which an earlier try wrote."""
        for number, path in self._folder.steps().items():
            if number >= step:
                shutil.rmtree(path)

    def _copy_tokenizers(self) -> None:
        """Copy the tokenizers that are there by now; that of a hub's model is in a checkpoint."""
        for policy, model in self._models.items():
            target = self._folder.path / TOKENIZERS / f"{policy}.json"
            if target.is_file():
                continue
            source = tokenizer_source(self._folder.run, policy, model)
            if source is not None:
                make_private_directory(target.parent)
                partial = target.with_name(f".{target.name}.partial")
                write_private(partial, source.read_bytes())
                os.replace(partial, target)  # noqa: PTH105

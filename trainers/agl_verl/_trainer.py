"""Training of one policy on verl's workers: read from `WorkerTrainer.train` downwards."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from agl_torch.adapters import check_digest, write_base
from agl_torch.sources import ADAPTER

from agl_core.errors import ConfigError, TrainingError
from agl_core.interfaces import AlgorithmSetup
from agl_core.training import group_minibatches
from agl_core.types import Batch
from agl_verl import _compat
from agl_verl._config import has_adapter, has_linear_adapter
from agl_verl._loss import PolicyLoss
from agl_verl._options import VerlOptions
from agl_verl._writing import files_digest, writing
from agl_verl.convert import Shown, TrainingRows, rows_of, tensors_of
from agl_verl.vision import BLANK, Vision

STATE: Final = "training_state"
"""Subdirectory with the state that only resuming needs."""
_EXPORTED: Final = "huggingface"
"""Subdirectory to which verl writes weights and tokenizer in transformers' format."""
_OF_MODEL: Final = ("config.json", "generation_config.json")
"""Files that a directory without a model's weights does not have."""


@dataclass(slots=True)
class Trained:
    """Result of an update."""

    metrics: dict[str, float] = field(default_factory=dict[str, float])
    rows: dict[str, int] = field(default_factory=dict[str, int])
    lost: dict[str, int] = field(default_factory=dict[str, int])
    taken: list[Mapping[str, float]] = field(default_factory=list[Mapping[str, float]])
    """Metrics of each optimizer step."""
    skipped: int = 0
    """Number of minibatches in which every token has weight 0."""

    def add_rows(self, rows: TrainingRows) -> None:
        for agent, count in rows.by_agent.items():
            self.rows[agent] = self.rows.get(agent, 0) + count
        for agent, causes in rows.lost.items():
            for cause, count in causes.items():
                self.count(f"{cause}_of_{agent}", count)

    def count(self, cause: str, n: int) -> None:
        if n:
            self.lost[cause] = self.lost.get(cause, 0) + n


class WorkerTrainer:
    """Converts batches to rows and runs optimizer steps on them with verl's workers.

    Every method blocks on Ray and must run in the `Driver`'s thread.
    """

    def __init__(
        self,
        workers: Any,
        config: Any,
        setup: AlgorithmSetup,
        options: VerlOptions,
        loss: PolicyLoss,
        vision: Vision | None = None,
    ) -> None:
        self._workers = workers
        self._config = config.actor_rollout_ref
        self._setup = setup
        self._options = options
        self._loss = loss
        self._keeps_reference = setup.kl_weight > 0 or has_adapter(self._config.model)
        self._ranks = int(workers.data_parallel_size()[0])
        self._pad_id = 0
        self._vision = vision
        self._digest: dict[str, str] = {}

    def configure(self, setup: AlgorithmSetup, loss: PolicyLoss, config: Any) -> None:
        """Train with another setup from now on; weights and optimizer state stay.

        Args:
            config: verl's configuration of a run with this setup.

        Raises:
            ConfigError: the setup has a KL term, but the initial weights were not kept.
        """
        if setup.kl_weight > 0 and not self._keeps_reference:
            raise ConfigError(
                f"algorithm.kl_weight is {setup.kl_weight}, but engine 'verl' did not keep the "
                f"initial weights: create the engine with a kl_weight above 0"
            )
        self._workers.reconfigure(config.actor_rollout_ref.actor)
        self._setup, self._loss, self._config = setup, loss, config.actor_rollout_ref

    def train(self, batch: Batch) -> Trained:
        """Take the batch's optimizer steps.

        Raises:
            TrainingError: the batch is malformed, no call fits into a row, or a loss is not finite.
        """
        setup, trained, batch = self._setup, Trained(), self._loss.prepared(batch)
        for epoch in range(setup.epochs):
            order = f"{setup.seed}/{batch.step}/{epoch}"
            for groups in group_minibatches(batch.groups, setup.minibatches, order=order):
                rows = self._rows(batch, groups)
                if epoch == 0:
                    trained.add_rows(rows)
                if rows.weight > 0:
                    trained.taken.append(self._step(rows, batch.images, trained))
                else:
                    trained.skipped += 1
        if not trained.rows:
            raise TrainingError(
                f"Nothing of batch {batch.step} of policy {batch.policy!r} fits into a row of "
                f"{self._limit()} tokens: raise verl.actor_rollout_ref.actor."
                f"ppo_max_token_len_per_gpu, or give the agents a PromptBudget"
            )
        trained.metrics = {
            **_means(trained.taken),
            "optimizer_steps": float(len(trained.taken)),
            "skipped_minibatches": float(trained.skipped),
        }
        return trained

    def save(self, directory: Path, *, version: int, resumable: bool) -> None:
        """Write weights and tokenizer in transformers' format, and the optimizer's state.

        With LoRA, a resumable directory has the adapter instead of the weights;
        `agl_torch.adapters.export` merges it.

        Raises:
            TrainingError: the files could not be written.
        """
        state = directory / STATE
        state.mkdir(parents=True, exist_ok=True)
        exported = state / _EXPORTED
        alone = resumable and self._vision is None and has_linear_adapter(self._config.model)
        weights = directory / ADAPTER if alone else exported
        with writing(directory):
            self._workers.save_checkpoint(local_path=str(state), global_step=version)
            if alone:
                self._workers.write_adapter(str(weights))
            elif has_adapter(self._config.model):
                self._workers.write_merged(str(weights))
        if not any(weights.glob("*.safetensors")):
            raise TrainingError(f"verl wrote no weights to {weights}: is its disk full?")
        for file in exported.iterdir():
            if not (alone and file.name in _OF_MODEL):
                shutil.move(file, directory / file.name)
        shutil.rmtree(exported)
        if alone:
            write_base(weights, model=self._base, dtype=torch.bfloat16, **self._base_digest())
        if self._vision is not None:  # verl does not write it if torchvision is not installed
            self._vision.save(directory)
        if not resumable:
            shutil.rmtree(state)

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote; settings such as the learning rate are those of now.

        Raises:
            ConfigError: the directory has no training state of engine ``verl``.
            TrainingError: its adapter was trained on other weights.
        """
        state = directory / STATE
        if not state.is_dir():
            raise ConfigError(
                f"{directory} holds no training state of engine 'verl': begin with its weights as "
                f"model = {str(directory)!r}, or resume with the engine that wrote it"
            )
        for name, digest in self._base_digest().items():
            check_digest(directory, name, digest)
        self._workers.load_checkpoint(local_path=str(state), del_local_after_load=False)
        self._workers.reconfigure(self._config.actor)

    def fingerprint(self) -> str:
        """Return the sha256 of the weights."""
        return str(self._workers.fingerprint()[0])

    @property
    def _base(self) -> str:
        """Directory or hub name of the adapter's base model."""
        path = Path(self._config.model.path)
        return str(path.absolute()) if path.is_dir() else str(path)

    def _base_digest(self) -> dict[str, str]:
        """Return the sha256 of the base model's files; empty for a hub name or without adapter."""
        files = Path(self._base).glob("*.safetensors")
        if has_adapter(self._config.model) and not self._digest and any(files):
            self._digest["sha256_of_files"] = files_digest(self._base)
        return self._digest

    def _rows(self, batch: Batch, groups: Iterable[int]) -> TrainingRows:
        merged = self._options.rows == "merged" and not self._loss.row_per_choice
        return rows_of(
            batch,
            level="merged" if merged else "transition",
            max_tokens=self._limit(),
            overlong=self._options.overlong,
            groups=set(groups),
        )

    def _limit(self) -> int:
        micro = int(self._config.actor.ppo_max_token_len_per_gpu)
        if self._vision is not None:  # a row without an image gets a blank image
            micro -= self._vision.lengths([BLANK])[0]
        return min(micro, self._options.max_row_tokens or micro)

    def _step(
        self, rows: TrainingRows, images: Sequence[str], trained: Trained
    ) -> Mapping[str, float]:
        """Take one optimizer step and return its metrics."""
        tensors = tensors_of(
            rows.rows,
            multiple=self._ranks,
            ranks=self._ranks,
            pad_id=self._pad_id,
            agg_mode=self._loss.agg_mode,
            shown=None if self._vision is None else Shown(self._vision, images),
        )
        trained.count("rows_padded", int(tensors["padding_rows"]))
        if self._setup.kl_weight > 0:
            tensors["ref_log_prob"] = self._reference(tensors)
        metrics: dict[str, Any] = _compat.reduce_metrics(
            self._workers.update_actor(tensors)["metrics"]
        )
        found = {_name(key): float(value) for key, value in metrics.items()}
        for name in ("loss", "grad_norm"):
            if not math.isfinite(found.get(name, 0.0)):
                raise TrainingError(
                    f"The {name} of an optimizer step is {found[name]}: the weights are spoilt. "
                    f"Lower algorithm.lr or algorithm.max_grad_norm and resume"
                )
        return found

    def _reference(self, tensors: Any) -> Any:
        """Return the log-probabilities under the initial weights."""
        asked = tensors.clone()
        asked.set_non_tensor("compute_loss", False)
        if has_adapter(self._config.model):
            asked.set_non_tensor("no_lora_adapter", True)
            answered = self._workers.compute_log_prob(asked)
        else:
            answered = self._workers.compute_ref_log_prob(asked)
        return _compat.response_from_nested(answered["log_probs"], tensors["response_mask"])


def _name(key: str) -> str:
    """Return the name of verl's metric without its prefix."""
    return key.removeprefix("actor/")


def _means(taken: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for metrics in taken:
        for name, value in metrics.items():
            found.setdefault(name, []).append(value)
    return {name: math.fsum(values) / len(values) for name, values in found.items()}

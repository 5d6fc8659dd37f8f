"""Training of one policy: read this file from `PolicyTrainer.train` downwards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Parameter

from agl_core.errors import ConfigError, TrainingError
from agl_core.interfaces import AlgorithmSetup
from agl_core.types import Batch, TokenNumbers
from agl_torch._forward import Entropies
from agl_torch._memory import REMEDY, ModelShape, PassShape, free_memory, itemized
from agl_torch._policy import LoadedPolicy
from agl_torch.losses import Loss, LossOutput, Terms
from agl_torch.losses.divergence import k3
from agl_torch.options import TorchOptions
from agl_torch.training.batch import TensorBatch
from agl_torch.training.checkpoint import load_state, save_state
from agl_torch.training.metrics import Metrics
from agl_torch.training.numbers import TermNumbers
from agl_torch.training.packing import Costs, Pack, Packer
from agl_torch.training.scoring import LogprobScorer
from agl_torch.training.tree import IntArray, TreeRow


@dataclass(slots=True)
class _Pass:
    """State of one update."""

    batch: TensorBatch
    step: int
    metrics: Metrics
    reference: Tensor
    """(M,) log-probabilities under the reference; NaN where not yet computed."""
    numbers: TermNumbers | None
    """None if the setup does not ask for numbers of each token."""
    moved: bool = False
    """Whether an optimizer step of this update has changed the weights."""


@dataclass(frozen=True, slots=True)
class TrainedBatch:
    """The results of an update."""

    metrics: dict[str, float]
    tokens: TokenNumbers | None


class PolicyTrainer:
    """Optimizer and loss of one policy."""

    def __init__(
        self, loaded: LoadedPolicy, setup: AlgorithmSetup, *, loss: Loss, options: TorchOptions
    ) -> None:
        """Create the optimizer and the scorers of `loaded`."""
        self._policy = loaded.policy.name
        self._setup = setup
        self._loss = loss
        weights = loaded.weights
        self._names = [name for name, _ in weights.parameters()]
        self._parameters = [parameter for _, parameter in weights.parameters()]
        self._optimizer = _optimizer(self._parameters, setup)
        self._packer = Packer(Costs.of(weights.model), pack_tokens=options.pack_tokens)
        served = next(weights.serving.module.parameters()).dtype
        mixed = weights.training is not weights.serving
        self._scorer = LogprobScorer(weights.training, autocast=served if mixed else None)
        reference = loaded.reference
        self._reference = None if reference is None else LogprobScorer(reference, autocast=None)
        self._device = weights.training.device
        self._shape = ModelShape.of(weights.model.config)
        self._width = served.itemsize
        self._checkpointing = options.gradient_checkpointing
        self._ratio_share = options.ratio_share

    def configure(self, setup: AlgorithmSetup, loss: Loss) -> None:
        """Train with another setup from now on; the optimizer's moments stay.

        Raises:
            ConfigError: the setup has a KL term, but the initial weights were not kept.
        """
        if setup.kl_weight > 0 and self._reference is None:
            raise ConfigError(
                f"Policy {self._policy!r}: algorithm.kl_weight is {setup.kl_weight}, but the initial "
                f"weights were not kept: create the engine with a kl_weight above 0"
            )
        self._setup, self._loss = setup, loss
        for group in self._optimizer.param_groups:
            group["lr"] = setup.lr
            group["weight_decay"] = _decay(group["params"], setup)

    def train(self, batch: Batch) -> TrainedBatch:
        """Take the batch's optimizer steps.

        Raises:
            TrainingError: the batch is malformed, or a gradient is not finite.
        """
        started = time.perf_counter()
        arrays = TensorBatch.of(batch, device=self._device)
        update = _Pass(
            arrays,
            batch.step,
            Metrics(),
            torch.full_like(arrays.weights, torch.nan),
            TermNumbers(arrays) if self._setup.token_numbers else None,
        )
        chosen = self._measured(arrays)
        if self._setup.minibatches > 1:  # the first step changes the weights for the other terms
            self._measure(update, chosen)
        steps = skipped = read = 0
        for epoch in range(self._setup.epochs):
            order = f"{self._setup.seed}/{batch.step}/{epoch}"
            for terms in arrays.minibatches(self._setup.minibatches, order=order):
                total = arrays.weight(terms)
                if total > 0:
                    read += self._step(update, terms, total=total)
                    steps += 1
                else:
                    skipped += 1
        self._measure(update, chosen)
        metrics = {
            **update.metrics.result(),
            "optimizer_steps": float(steps),
            "skipped_minibatches": float(skipped),
            "tokens_read": float(read),
            "update_s": time.perf_counter() - started,
        }
        return TrainedBatch(metrics, None if update.numbers is None else update.numbers.result())

    def _measured(self, batch: TensorBatch) -> IntArray | None:
        """Return the terms that get log-probabilities after the update; None for no term."""
        if not self._setup.token_numbers or self._ratio_share == 0:
            return None
        return batch.strongest(self._ratio_share)

    @torch.no_grad()
    def _measure(self, update: _Pass, terms: IntArray | None) -> None:
        """Compute log-probabilities of terms under the current weights."""
        if terms is None or update.numbers is None:
            return
        batch = update.batch
        for group in self._packer.packs(self._packer.rows(batch.forest, terms)):
            pack = batch.layout.pack(group, device=self._device)
            entropies = None if update.moved else Entropies()
            logprobs = self._scorer.logprobs(pack, batch, entropies=entropies)
            update.numbers.add(pack.terms, logprobs, entropies)
            update.numbers.after[pack.terms] = logprobs

    def _step(self, update: _Pass, terms: IntArray, *, total: float) -> int:
        """Take one optimizer step on a minibatch and return the number of tokens read.

        The minibatch's loss is the sum over its terms divided by the sum of their weights, `total`.
        Its gradient is therefore a sum over packs and does not depend on the packing.
        """
        rows = self._packer.rows(update.batch.forest, terms)
        for group in self._packer.packs(rows):
            self._accumulate(update, group, total=total)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._setup.max_grad_norm)
        if not bool(torch.isfinite(norm)):
            self._optimizer.zero_grad()
            raise TrainingError(
                f"Policy {self._policy!r}, step {update.step}: the gradient is not finite (norm "
                f"{float(norm)}), so no step was taken: lower algorithm.lr, or look for extreme "
                f"advantages"
            )
        update.metrics.mean({"grad_norm": norm}, torch.ones_like(norm))
        if self._setup.lr > 0:
            self._optimizer.step()
            update.moved = True
        self._optimizer.zero_grad()
        return sum(map(len, rows))

    def _accumulate(self, update: _Pass, rows: Sequence[TreeRow], *, total: float) -> None:
        """Add the gradient of one pack."""
        batch = update.batch
        recompute = self._recompute(rows)
        pack = batch.layout.pack(rows, device=self._device)
        chosen = pack.terms
        reference = self._reference_logprobs(update, pack)
        numbers = None if update.moved else update.numbers
        entropies = None if numbers is None else Entropies()
        logprobs = self._scorer.logprobs(
            pack, batch, recompute=recompute, entropies=entropies
        )  # (S,)
        if numbers is not None:
            numbers.add(chosen, logprobs.detach(), entropies)
        terms = Terms(
            logprobs=logprobs,
            behaviour=batch.behaviour[chosen],
            advantages=batch.advantages[chosen],
            weights=batch.weights[chosen],
            sequences=torch.unique(batch.calls[chosen], return_inverse=True)[1],
        )
        output = self._loss(terms)
        losses = output.losses
        means = dict(output.means)
        if reference is not None:
            means["kl"] = k3(logprobs, reference)
            losses = losses + self._setup.kl_weight * means["kl"]
        ((losses * terms.weights).sum() / total).backward()
        self._report(update, terms, output, {**means, "loss": losses})

    def _recompute(self, rows: Sequence[TreeRow]) -> bool:
        """Return whether to use gradient checkpointing for a pass.

        Raises:
            TrainingError: the pass does not fit into the free memory.
        """
        free = free_memory(self._device)
        if free is None:
            return self._checkpointing == "always"
        one = PassShape(
            rows=len(rows),
            tokens=max(map(len, rows)),
            terms=sum(len(row.terms) for row in rows),
            width=self._width,
            masked=not all(row.is_path for row in rows),
        )
        plain = one.needs(self._shape, recompute=False)
        unallocated = self._unallocated()
        if self._checkpointing == "auto":
            recompute = 2 * sum(plain.values()) > free - unallocated
        else:
            recompute = self._checkpointing == "always"
        parts = one.needs(self._shape, recompute=True) if recompute else plain
        if sum(parts.values()) + unallocated > free:
            raise TrainingError(
                f"Policy {self._policy!r}: a pass over {one.rows} rows of {one.tokens} tokens needs "
                f"{itemized({**parts, 'gradients and moments': unallocated})}, but {self._device.type} has "
                f"{free / 1e9:.2f} GB free, so no step was taken. A path of calls is never cut, "
                f"whatever engine.pack_tokens: shorten conversations, or {REMEDY}"
            )
        return recompute

    def _unallocated(self) -> int:
        """Return the bytes of gradients and moments that are not allocated yet."""
        missing = 0
        for parameter in self._parameters:
            size = parameter.numel() * parameter.element_size()
            missing += size * (parameter.grad is None)
            missing += 2 * size * (parameter not in self._optimizer.state)
        return missing

    def _reference_logprobs(self, update: _Pass, pack: Pack) -> Tensor | None:
        """Return the pack's log-probabilities under the reference, computed once per update."""
        if self._reference is None or self._setup.kl_weight == 0:
            return None
        if bool(update.reference[pack.terms].isnan().any()):
            with torch.no_grad():
                update.reference[pack.terms] = self._reference.logprobs(pack, update.batch)
        return update.reference[pack.terms]

    @torch.no_grad()
    def _report(
        self, update: _Pass, terms: Terms, output: LossOutput, means: dict[str, Tensor]
    ) -> None:
        error = (terms.logprobs - terms.behaviour).abs()
        maxima = dict(output.maxima)
        if not update.moved:
            means["logprob_error"] = error
            maxima["logprob_error_max"] = error
        update.metrics.mean({**means, "entropy": -terms.logprobs}, terms.weights)
        update.metrics.largest(maxima, terms.weights)

    def save(self, directory: Path) -> None:
        """Write the optimizer's state into the directory of the weights."""
        save_state(self._optimizer, self._names, directory)

    def load(self, directory: Path) -> None:
        """Restore the state that `save` wrote; without one, start with a fresh optimizer."""
        load_state(self._optimizer, self._names, directory)


def _optimizer(parameters: Sequence[Parameter], setup: AlgorithmSetup) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices only."""
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups = [
        {"params": parameters, "weight_decay": _decay(parameters, setup)}
        for parameters in (matrices, vectors)
        if parameters
    ]
    return torch.optim.AdamW(groups, lr=setup.lr, fused=True)


def _decay(group: Sequence[Parameter], setup: AlgorithmSetup) -> float:
    """Return the weight decay of a group of parameters, which are all matrices or all vectors."""
    return setup.weight_decay if group[0].ndim > 1 else 0.0

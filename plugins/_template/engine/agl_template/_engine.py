"""An engine that serves policies and trains them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from agl_testing.toy_model import SIZE, Term, ToyModel

from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup, Engine
from agl_core.types import Batch, Policy, Update
from agl_template._backend import TemplateBackend
from agl_template._loss import PolicyGradient
from agl_template._options import TemplateOptions


class TemplateEngine(Engine):
    """An engine with one model per policy.

    Replace `ToyModel` by your library. If the library has further abilities of
    `agl_core.interfaces.Engine`, override their methods; this declares them.
    """

    trains = True

    def __init__(self, options: TemplateOptions, setup: AlgorithmSetup | None) -> None:
        """Create an engine; `start` loads the weights.

        Args:
            options: From the run's configuration.
            setup: How to train; None only serves.

        Raises:
            ConfigError: a setting of the algorithm that this engine does not have.
        """
        if setup is not None and (setup.kl_weight or setup.weight_decay or setup.minibatches > 1):
            raise ConfigError(
                "Engine 'template' has no kl_weight, weight_decay and minibatches: leave them out"
            )
        self._options = options
        self._setup = setup
        self._loss: PolicyGradient | None = None if setup is None else setup.loss_factory()
        self._models: dict[str, ToyModel] = {}
        self._backends: dict[str, TemplateBackend] = {}
        self._versions: dict[str, int] = {}

    async def start(self, policies: Sequence[Policy]) -> None:
        for policy in policies:
            model = ToyModel()
            await asyncio.to_thread(model.load, Path(policy.model))
            self._models[policy.name] = model
            limit = self._options.max_tokens
            self._backends[policy.name] = TemplateBackend(model, max_tokens=limit)
            self._versions[policy.name] = policy.version

    async def stop(self) -> None:
        self._models.clear()
        self._backends.clear()

    def backend(self, policy: str) -> TemplateBackend:
        if policy not in self._backends:
            raise ConfigError(f"There is no policy {policy!r}; there are {sorted(self._backends)}")
        return self._backends[policy]

    async def update(self, batch: Batch) -> Update:
        if self._setup is None or self._loss is None:
            raise ConfigError("The engine was made to serve only: give it an algorithm")
        model, loss, setup = self._models[batch.policy], self._loss, self._setup
        for _ in range(setup.epochs):
            terms = _terms(batch, model, loss)
            await asyncio.to_thread(
                model.train, terms, lr=setup.lr, max_grad_norm=setup.max_grad_norm
            )
        self._versions[batch.policy] += 1
        return Update(
            policy=batch.policy,
            step=batch.step,
            version=self._versions[batch.policy],
            rows=dict(Counter(batch.agents)),
        )

    async def save(self, policy: str, directory: str, *, resumable: bool = True) -> None:
        model = self._models[policy]
        await asyncio.to_thread(model.save, Path(directory), resumable=resumable)

    async def load(self, policy: str, directory: str, *, version: int) -> None:
        await asyncio.to_thread(self._models[policy].load, Path(directory))
        self._versions[policy] = version

    async def fingerprint(self, policy: str) -> str:
        return hashlib.sha256(json.dumps(self._models[policy].logits).encode()).hexdigest()

    def vocab_size(self, policy: str) -> int:  # noqa: ARG002 (the same for every policy)
        return SIZE

    def shows_tools(self, policy: str) -> bool:  # noqa: ARG002
        return False


def _terms(batch: Batch, model: ToyModel, loss: PolicyGradient) -> list[Term]:
    """Return the loss terms of a batch; `agl_core.types.Batch` describes its columns."""
    columns = zip(
        batch.targets,
        batch.advantages,
        batch.weights,
        batch.logprobs,
        batch.temperatures,
        strict=True,
    )
    terms: list[Term] = []
    for token, advantage, weight, old, temperature in columns:
        ratio = math.exp(model.logprobs(temperature or 1.0)[token] - old)
        terms.append(Term(token, loss.slope(advantage, ratio), weight))
    return terms

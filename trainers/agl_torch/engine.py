"""The ``torch`` engine: serves policies in this process and trains them."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup, Engine, Renderer, Scored
from agl_core.types import Batch, Policy, Update
from agl_torch._forward import ForwardRows
from agl_torch._memory import check_memory
from agl_torch._policy import LoadedPolicy, PolicyLoader
from agl_torch._trainer import PolicyTrainer
from agl_torch._weights import fingerprint
from agl_torch.adapters import export
from agl_torch.backend import TorchBackend
from agl_torch.chat.conversation import conversation_renderer
from agl_torch.chat.template import ChatTemplate
from agl_torch.models import end_tokens_of, load_tokenizer
from agl_torch.options import TorchOptions
from agl_torch.serving.decoder import Decoder
from agl_torch.serving.lane import Lane, LaneLimits
from agl_torch.serving.worker import Worker

_LOG = logging.getLogger(__name__)
_SWITCH_INTERVAL_S = 0.0005
"""Interpreter switch interval while the engine runs.

The engine's thread reacquires the GIL after each of about 300 tensor operations per token, and
waits up to this long for it when agents are busy in Python. At the default of 5 ms, generation next
to one fully busy thread took 1.1 to 1.7 times as long."""


class TorchEngine(Engine):
    """Policies on one device, served and trained by one thread.

    An update waits for the running requests and then uses the device alone, so no request mixes
    old and new weights. Requests that arrive during the update are answered by the new version.
    """

    trains = True

    def __init__(self, options: TorchOptions, setup: AlgorithmSetup | None) -> None:
        """Prepare an engine; `start` loads the weights.

        Args:
            setup: How to train; None serves only.

        Raises:
            ConfigError: the device does not exist, the algorithm's loss is unknown, or the loss's
                options are invalid.
        """
        self._options = options
        self._setup = setup
        self._loss = None if setup is None else setup.loss_factory()
        self._device = device_of(options.device)
        self._dtype = dtype_of(options.dtype, self._device)
        self._worker: Worker[Lane] = Worker()
        self._interval: float | None = None
        """The interpreter's switch interval before `start`."""
        self._policies: dict[str, LoadedPolicy] = {}
        self._trainers: dict[str, PolicyTrainer] = {}

    async def start(self, policies: Sequence[Policy]) -> None:
        """Load every policy and start to serve.

        Raises:
            ConfigError: a model path is wrong or its tokenizer has no chat template.
        """
        _name_idle_devices(self._device)
        self._worker.start()
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(min(self._interval, _SWITCH_INTERVAL_S))
        try:
            await self._worker.run(lambda: self._load(policies))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the thread; running requests fail with an error."""
        await self._worker.stop()
        if self._interval is not None:
            sys.setswitchinterval(self._interval)
            self._interval = None

    def backend(self, policy: str) -> TorchBackend:
        """Return the backend of one policy.

        Raises:
            ConfigError: the policy does not exist.
        """
        loaded = self._policy(policy)
        return TorchBackend(loaded.endpoint, self._worker, partial(self._scored, loaded))

    async def update(self, batch: Batch) -> Update:
        """Train ``batch.policy``.

        Raises:
            ConfigError: the policy is frozen, or the engine was created without an algorithm.
            TrainingError: the batch is malformed, or its gradient is not finite.
        """
        trainer = self._trainer(batch.policy)
        return await self._worker.run(lambda: self._update(trainer, batch), lane=batch.policy)

    async def configure(self, setup: AlgorithmSetup) -> None:
        """Train with another setup from now on; weights and optimizer state stay.

        Raises:
            ConfigError: the algorithm's loss is unknown or its options are invalid, or the engine
                was created without `kl_weight` and so keeps no reference.
        """
        loss = setup.loss_factory()

        def work() -> None:
            for trainer in self._trainers.values():
                trainer.configure(setup, loss)
            self._setup, self._loss = setup, loss

        await self._worker.run(work)

    def check_setup(self, setup: AlgorithmSetup) -> None:
        """Check that the setup's loss exists and accepts its options; see `Engine.check_setup`."""
        setup.loss_factory()

    async def save(self, policy: str, directory: str, *, resumable: bool = True) -> None:
        """Write weights and tokenizer to a directory.

        With LoRA, a resumable directory has only the adapter; `export` merges it into the model.
        """
        loaded = self._policy(policy)
        await self._worker.run(lambda: self._save(loaded, Path(directory), resumable=resumable))

    @staticmethod
    async def export(source: str, target: str) -> None:
        """Write a saved policy as a directory that transformers and vLLM can load."""
        await asyncio.to_thread(export, Path(source), Path(target))

    async def load(self, policy: str, directory: str, *, version: int) -> None:
        """Restore the weights, and the optimizer's state if it was saved.

        Raises:
            ConfigError: the directory has no weights that fit this policy.
        """
        loaded = self._policy(policy)
        await self._worker.run(lambda: self._restore(loaded, Path(directory), version), lane=policy)

    @staticmethod
    def renderer(model: str) -> Renderer:
        """Return the model's chat template as a function; see `Engine.renderer`."""
        tokenizer = load_tokenizer(model)
        template = ChatTemplate(tokenizer, source=model)
        return conversation_renderer(template, end_tokens_of(model, tokenizer))

    def shows_tools(self, policy: str) -> bool:
        """Return whether the policy's chat template renders the tools of a request."""
        return self._policy(policy).endpoint.template.shows_tools()

    def vocab_size(self, policy: str) -> int:
        """Return the number of rows of the policy's embedding; every token id is smaller."""
        embedding: Any = self._policy(policy).weights.model.get_input_embeddings()
        return int(embedding.num_embeddings)

    async def fingerprint(self, policy: str) -> str:
        """Return the sha256 of the names and bytes of the policy's weights."""
        loaded = self._policy(policy)
        return await self._worker.run(lambda: fingerprint(loaded.weights.tensors()))

    def _load(self, policies: Sequence[Policy]) -> None:
        torch.set_num_threads(thread_count(self._options))
        setup = self._setup
        reference = setup is not None and setup.kl_weight > 0
        check_memory(
            policies,
            self._options,
            trains=setup is not None,
            device=self._device,
            dtype=self._dtype,
            reference=reference,
        )
        loader = PolicyLoader(
            self._options,
            device=self._device,
            dtype=self._dtype,
            seed=0 if setup is None else setup.seed,
            reference=reference,
        )
        self._policies = loader.load(policies)
        for name, loaded in self._policies.items():
            self._worker.lanes[name] = self._lane(loaded)
            if setup is not None and self._loss is not None and loaded.policy.trainable:
                self._trainers[name] = PolicyTrainer(
                    loaded, setup, loss=self._loss, options=self._options
                )

    def _lane(self, loaded: LoadedPolicy) -> Lane:
        options = self._options
        decoder = Decoder(
            loaded.weights.serving,
            loaded.weights.model.config,
            kv_tokens=options.kv_tokens,
            prefix_tokens=options.prefix_tokens,
            deterministic=options.deterministic,
        )
        limits = LaneLimits(rows=options.max_batch_size, kv_tokens=options.kv_tokens)
        return Lane(decoder, limits=limits, ends=loaded.ends, version=loaded.policy.version)

    def _update(self, trainer: PolicyTrainer, batch: Batch) -> Update:
        trained = trainer.train(batch)
        version = self._worker.lanes[batch.policy].version
        self._publish(self._policies[batch.policy], version + 1, trained_in=batch.step)
        return Update(
            policy=batch.policy,
            step=batch.step,
            version=version + 1,
            metrics=trained.metrics,
            rows=dict(Counter(batch.agents)),
            tokens=trained.tokens,
        )

    @torch.no_grad()
    def _scored(
        self, loaded: LoadedPolicy, prompt: Sequence[int], answer: Sequence[int], temperature: float
    ) -> Scored:
        model = loaded.weights.serving
        tokens = torch.tensor([[*prompt, *answer[:-1]]], device=model.device)  # (1, T)
        positions = torch.arange(tokens.shape[1], device=model.device)[None]
        targets = torch.tensor([*answer], device=model.device)
        logprobs = model.logprobs(
            ForwardRows(tokens, positions, None, positions),
            select=positions[0, len(prompt) - 1 :],
            targets=targets,
            temperatures=torch.full(targets.shape, temperature, device=model.device),
        )
        version = self._worker.lanes[loaded.policy.name].version
        return Scored(logprobs.tolist(), version)

    def _publish(
        self, loaded: LoadedPolicy, version: int, *, trained_in: int | None = None
    ) -> None:
        loaded.weights.publish()
        self._worker.lanes[loaded.policy.name].renew(version, trained_in=trained_in)

    def _save(self, loaded: LoadedPolicy, directory: Path, *, resumable: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        loaded.weights.save(directory, whole=not resumable)
        loaded.tokenizer.save_pretrained(str(directory))
        trainer = self._trainers.get(loaded.policy.name)
        if resumable and trainer is not None:
            trainer.save(directory)

    def _restore(self, loaded: LoadedPolicy, directory: Path, version: int) -> None:
        loaded.weights.load(directory)
        trainer = self._trainers.get(loaded.policy.name)
        if trainer is not None:
            trainer.load(directory)
        self._publish(loaded, version)

    def _policy(self, name: str) -> LoadedPolicy:
        if name not in self._policies:
            raise ConfigError(
                f"Engine 'torch' has no policy {name!r}; it has {sorted(self._policies)}"
            )
        return self._policies[name]

    def _trainer(self, name: str) -> PolicyTrainer:
        loaded = self._policy(name)
        if self._setup is None:
            raise ConfigError("Engine 'torch' was made to serve only: give it an algorithm")
        if name not in self._trainers:
            raise ConfigError(
                f"Policy {loaded.policy.name!r} is frozen: set trainable in policies.{name}"
            )
        return self._trainers[name]


def device_of(name: str) -> torch.device:
    """Return the device that the option `device` selects.

    Raises:
        ConfigError: the option is ``cuda`` and torch finds no GPU.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError("engine.device is 'cuda', but torch sees no CUDA device: use 'auto'")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def _name_idle_devices(device: torch.device) -> None:
    """Log a warning about unused GPUs: the engine uses only one."""
    if device.type != "cuda" or torch.cuda.device_count() < 2:  # noqa: PLR2004
        return
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    used = torch.cuda.current_device()
    idle = ", ".join(f"cuda:{i} ({name})" for i, name in enumerate(names) if i != used)
    _LOG.warning(
        "Engine 'torch' uses one GPU, cuda:%s (%s), and leaves idle: %s. To train on several use "
        "engine.name = 'verl'; to choose the one, set CUDA_VISIBLE_DEVICES",
        used,
        names[used],
        idle,
    )


def dtype_of(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype that the option `dtype` selects."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def thread_count(options: TorchOptions) -> int:
    """Return all cores but one, which is left to the event loop and the agents."""
    if options.deterministic:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return options.threads or max(1, (cores or 1) - 1)

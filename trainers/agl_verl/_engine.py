"""The ``verl`` engine: trains and serves policies with verl in a Ray cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from agl_torch.adapters import export
from agl_torch.chat.conversation import conversation_renderer
from agl_torch.chat.template import ChatTemplate
from agl_torch.sources import is_adapter

from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup, Engine, Renderer
from agl_core.types import Batch, Policy, Update
from agl_verl import _compat
from agl_verl._cluster import Cluster, choose_device, use_platform
from agl_verl._config import Served, context_of, make_config, use_of
from agl_verl._driver import Driver
from agl_verl._fleet import LaterFleet, ReplicaFleet
from agl_verl._loss import PolicyLoss
from agl_verl._options import VerlOptions
from agl_verl._rollout import Replicas
from agl_verl._trainer import Trained, WorkerTrainer
from agl_verl._writing import files_digest
from agl_verl.memory import Shape, check_fits
from agl_verl.vision import Vision, vision_of, vocab_size_of

_WEIGHTS: Final = ("*.safetensors", "*.bin")


class VerlEngine(Engine):
    """One trained policy, and any number of frozen ones on the trainer's devices.

    verl's training workers hold one set of weights, so only one policy can be trained; it may
    serve several agents. Its replicas either share the trainer's devices and release their memory
    during training, or have their own devices and continue to serve. The training loop ensures
    that no call is running while they load new weights.
    """

    trains = True

    def __init__(self, options: VerlOptions, setup: AlgorithmSetup | None) -> None:
        """Prepare an engine; `start` starts its processes.

        Args:
            setup: How to train; None serves only.

        Raises:
            ImportError: verl is not installed.
            ConfigError: verl's version is unsupported, the device does not exist, the algorithm's
                loss is unknown, or the loss's options are invalid.
        """
        _compat.check_version()
        self._options = options
        self._setup = setup
        self._loss: PolicyLoss | None = None if setup is None else setup.loss_factory()
        self._device = choose_device(options.device, options.ray_address)
        use_platform(self._device)
        self._driver = Driver()
        self._cluster = Cluster(device=self._device, address=options.ray_address)
        self._policies: dict[str, Policy] = {}
        self._versions: dict[str, int] = {}
        self._replicas: dict[str, Replicas] = {}
        """By model for frozen policies, by policy name for trainable ones; see `_key`."""
        self._fleets: dict[str, ReplicaFleet | LaterFleet] = {}
        self._trainer: WorkerTrainer | None = None
        self._visions: dict[str, Vision | None] = {}
        self._vocab_sizes: dict[str, int] = {}
        self._shows_tools: dict[str, bool] = {}
        """By model, as are `_visions` and `_vocab_sizes`."""
        self._reviving = asyncio.Lock()
        self._merged: TemporaryDirectory[str] | None = None
        self._config: Any = None
        self._pool: Any = None

    async def start(self, policies: Sequence[Policy]) -> None:
        """Connect to Ray or start it, load every policy's weights and serve them.

        Raises:
            ConfigError: several policies are trainable, a model path is wrong or its tokenizer has
                no chat template, or the cluster is too small.
        """
        trained = [policy for policy in policies if policy.trainable and self._setup is not None]
        _check_one(trained)
        self._policies = {policy.name: policy for policy in policies}
        self._versions = {policy.name: policy.version for policy in policies}
        try:
            await self._driver.run(lambda: self._start(policies, trained[0] if trained else None))
        except BaseException:
            await self.stop()
            raise
        for policy in policies:
            key = _key(policy)
            self._fleets[policy.name] = (
                self._fleet(key) if key in self._replicas else self._later(key)
            )

    async def stop(self) -> None:
        """Stop all processes, also during `start`; idempotent."""
        self._driver.interrupt()
        for fleet in self._fleets.values():
            await fleet.close()
        self._fleets.clear()
        replicas = list(self._replicas.values())
        self._replicas.clear()
        if replicas:
            await self._driver.run(lambda: [each.close() for each in replicas])
        await asyncio.to_thread(self._cluster.close)
        self._driver.close()
        if self._merged is not None:
            self._merged.cleanup()

    def backend(self, policy: str) -> ReplicaFleet | LaterFleet:
        """Return the backend of one policy.

        Raises:
            ConfigError: the policy does not exist.
        """
        self._policy(policy)
        return self._fleets[policy]

    def image_token(self, policy: str) -> int | None:
        """Return the id of the image placeholder token; None for a text model."""
        vision = self._visions[self._policy(policy).model]
        return None if vision is None else vision.token

    def shows_tools(self, policy: str) -> bool:
        """Return whether the model's chat template renders the tools of a request."""
        return self._shows_tools[self._policy(policy).model]

    def vocab_size(self, policy: str) -> int:
        """Return the size of the model's vocabulary; every token id is smaller."""
        return self._vocab_sizes[self._policy(policy).model]

    @property
    def overlaps(self) -> bool:
        """Whether replicas serve while the policy is trained."""
        return any(replicas.apart for replicas in self._replicas.values())

    async def update(self, batch: Batch) -> Update:
        """Train ``batch.policy`` and publish the new version; see `train` and `publish`."""
        update = await self.train(batch)
        await self.publish(batch.policy)
        return update

    async def train(self, batch: Batch) -> Update:
        """Train ``batch.policy``; replicas with their own devices serve the old version meanwhile.

        If a replica dies during training, no process has the old version any more: `publish`
        replaces the replica, and calls to it wait until then.

        Raises:
            ConfigError: the policy is frozen, or the engine was created without an algorithm.
            TrainingError: the batch is malformed, a loss is not finite, or a worker died.
        """
        trainer, before = self._trained(batch.policy), self._versions[batch.policy]
        replicas = self._replicas[batch.policy]

        def work() -> Trained:
            if not replicas.apart:  # one with its own devices would serve its initial weights
                replicas.repair()
            replicas.sleep()
            return trainer.train(batch)

        await self._reviving.acquire()
        try:
            done = await self._driver.run(work)
        except BaseException:
            self._reviving.release()
            raise
        return Update(
            policy=batch.policy,
            step=batch.step,
            version=before + 1,
            metrics=done.metrics,
            rows=done.rows,
            lost=done.lost,
        )

    async def publish(self, policy: str) -> None:
        """Serve the weights that `train` produced for ``policy``.

        Raises:
            EngineError: a replica is dead and cannot be replaced.
            TrainingError: a worker died.
        """
        replicas, version = self._replicas[policy], self._versions[policy] + 1

        def work() -> None:
            replicas.repair()
            replicas.sync(version)

        try:
            await self._driver.run(work)
            self._versions[policy] = version
        finally:
            self._reviving.release()

    async def configure(self, setup: AlgorithmSetup) -> None:
        """Train with another setup from now on; weights and optimizer state stay.

        Raises:
            ConfigError: the algorithm's loss is unknown or its options are invalid, verl rejects a
                value, or the engine was created without `kl_weight` and so keeps no reference.
        """
        trainer, loss = self._training(), setup.loss_factory()
        await self._driver.run(
            lambda: trainer.configure(setup, loss, self._verl_config(setup, loss))
        )
        self._setup, self._loss = setup, loss

    def check_setup(self, setup: AlgorithmSetup) -> None:
        """Check that the setup's loss exists and accepts its options; see `Engine.check_setup`."""
        setup.loss_factory()

    async def save(self, policy: str, directory: str, *, resumable: bool = True) -> None:
        """Write weights and tokenizer to a directory; see `WorkerTrainer.save`."""
        trainer, version = self._trained(policy), self._versions[policy]
        target = Path(directory)
        await self._driver.run(lambda: trainer.save(target, version=version, resumable=resumable))

    @staticmethod
    async def export(source: str, target: str) -> None:
        """Write a saved policy for transformers and vLLM, with the adapter merged."""
        await asyncio.to_thread(export, Path(source), Path(target))

    @staticmethod
    def renderer(model: str) -> Renderer:
        """Return the model's chat template as a function; see `Engine.renderer`."""
        from agl_torch.models import end_tokens_of  # noqa: PLC0415  it imports torch

        tokenizer = _tokenizer_of(model, trust_remote_code=False)
        ends = end_tokens_of(model, tokenizer)
        return conversation_renderer(ChatTemplate(tokenizer, source=model), ends)

    async def load(self, policy: str, directory: str, *, version: int) -> None:
        """Restore what `save` wrote, as `version`; without an algorithm, only its weights.

        Raises:
            ConfigError: the directory has no such state.
        """
        key = _key(self._policy(policy))
        trainer = None if self._trainer is None else self._trained(policy)
        replicas = self._replicas[key]

        def work() -> None:
            if trainer is None:
                replicas.restart(self._whole(Path(directory)))
                return
            trainer.load(Path(directory))
            replicas.sync(version)

        await self._driver.run(work)
        self._versions[policy] = version
        if self._trainer is None:  # restarted replicas have other addresses and another model name
            before, self._fleets[policy] = self._fleets[policy], self._fleet(key)
            await before.close()

    async def fingerprint(self, policy: str) -> str:
        """Return the sha256 of the trained weights, or of a frozen policy's weight files."""
        if self._trainer is not None and self._policy(policy).trainable:
            return await self._driver.run(self._trained(policy).fingerprint)
        return await asyncio.to_thread(files_digest, self._policy(policy).model)

    def _start(self, policies: Sequence[Policy], trained: Policy | None) -> None:
        setup, loss = self._setup, self._loss
        config = self._verl_config(setup, loss)
        trust = bool(config.actor_rollout_ref.model.trust_remote_code)
        for model in {policy.model for policy in policies}:
            tokenizer = _tokenizer_of(model, trust_remote_code=trust)
            self._shows_tools[model] = ChatTemplate(tokenizer, source=model).shows_tools()
            self._visions[model] = vision_of(model, trust_remote_code=trust)
            self._vocab_sizes[model] = vocab_size_of(model, trust_remote_code=trust)
        if trained is not None and self._device == "cuda":
            served = served_by(policies, self._options)
            _check_memory(config, served, trained.model, trust_remote_code=trust)
        self._cluster.connect(config)
        self._config, self._pool = config, Replicas.pool(config)
        pool = self._pool
        if trained is not None and setup is not None and loss is not None:
            workers = Replicas.workers(config, pool, reference=setup.kl_weight > 0)
            replicas = Replicas.of_workers(config, workers)
            self._trainer = WorkerTrainer(
                workers, config, setup, self._options, loss, self._visions[trained.model]
            )
            self._replicas[trained.name] = replicas
            replicas.sleep()
            replicas.sync(trained.version)
        for policy in policies:
            if trained is None or not _only_for_others(policy):
                self._start_frozen(_key(policy))

    def _verl_config(self, setup: AlgorithmSetup | None, loss: PolicyLoss | None) -> Any:
        """Return verl's configuration of this engine with a setup; see `make_config`."""
        policies = list(self._policies.values())
        trained = next((each for each in policies if each.trainable and setup is not None), None)
        return make_config(
            self._options.verl,
            device=self._device,
            model=(trained or policies[0]).model,
            setup=setup if trained else None,
            actor=loss.actor if loss is not None else {},
            served=served_by(policies, self._options),
        )

    def _whole(self, directory: Path) -> str:
        """Return a directory that replicas can load; a merged adapter is kept until `stop`."""
        if not is_adapter(directory):
            return str(directory)
        before, self._merged = self._merged, TemporaryDirectory(prefix="agl-merged-")
        export(directory, Path(self._merged.name), may_equal_base=True)
        if before is not None:
            before.cleanup()
        return self._merged.name

    def _start_frozen(self, key: str) -> None:
        if key not in self._replicas:
            first = sum(len(each.addresses) for each in self._replicas.values())
            frozen = Replicas.frozen(self._config, self._pool, model=key, first=first)
            self._replicas[key] = frozen

    def _later(self, key: str) -> LaterFleet:
        """Return a frozen policy's backend whose replica starts at the first call."""

        async def start() -> ReplicaFleet:
            await self._driver.run(lambda: self._start_frozen(key))
            return self._fleet(key)

        return LaterFleet(start)

    def _fleet(self, key: str) -> ReplicaFleet:
        replicas = self._replicas[key]
        return ReplicaFleet(
            replicas.addresses, replicas.model, lambda index: self._revive(key, index)
        )

    async def _revive(self, key: str, index: int) -> str | None:
        """Replace a dead replica; other calls to it wait meanwhile. See `agl_verl._fleet.Revive`."""
        async with self._reviving:
            replicas, version = self._replicas[key], self._versions.get(key, 0)
            if await self._driver.run(lambda: replicas.state(index)) == "alive":
                return None if replicas.replaced[index] == 0 else replicas.addresses[index]
            return await self._driver.run(lambda: replicas.replace(index, version))

    def _policy(self, name: str) -> Policy:
        if name not in self._policies:
            raise ConfigError(
                f"Engine 'verl' has no policy {name!r}; it has {sorted(self._policies)}"
            )
        return self._policies[name]

    def _trained(self, name: str) -> WorkerTrainer:
        policy, trainer = self._policy(name), self._training()
        if not policy.trainable:
            raise ConfigError(f"Policy {name!r} is frozen: set trainable in policies.{name}")
        return trainer

    def _training(self) -> WorkerTrainer:
        if self._trainer is None:
            raise ConfigError("Engine 'verl' was made to serve only: give it an algorithm")
        return self._trainer


def _key(policy: Policy) -> str:
    """Return the key of a policy's replicas: frozen policies of one model share a replica."""
    return policy.name if policy.trainable else policy.model


def _only_for_others(policy: Policy) -> bool:
    """Return whether a policy serves only the agents no other names, so it may get no calls."""
    return not policy.trainable and set(policy.agents) == {"*"}


def served_by(policies: Sequence[Policy], options: VerlOptions, *, here: bool = True) -> Served:
    """Return the properties of the policies' models that the configuration depends on.

    Args:
        here: Whether the run will start in this environment.
    """
    trained = next((policy for policy in policies if policy.trainable), policies[0])
    frozen = {policy.model for policy in policies if not policy.trainable}
    return Served(
        context=context_of(trained.model),
        row_tokens=options.max_row_tokens,
        frozen=len(frozen),
        here=here,
    )


def _check_memory(config: Any, served: Served, model: str, *, trust_remote_code: bool) -> None:
    """Check that the run fits into this machine's first GPU; other machines are not checked.

    Raises:
        ConfigError: it does not fit; the message lists the sums.
    """
    import torch  # noqa: PLC0415
    from transformers import AutoConfig  # noqa: PLC0415

    if torch.cuda.is_available():
        shape = Shape.of(AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code))
        memory = int(torch.cuda.get_device_properties(0).total_memory)
        longest = int(config.actor_rollout_ref.rollout.max_model_len)
        check_fits(shape, use_of(config, served), memory, longest=longest)


def _check_one(trained: Sequence[Policy]) -> None:
    if len(trained) > 1:
        names = ", ".join(policy.name for policy in trained)
        raise ConfigError(
            f"Engine 'verl' trains one policy, but these are trainable: {names}. verl's workers "
            f"hold one set of weights, adapters included. Let one policy serve the agents "
            f"(policies.NAME.agents lists several), or train several with engine.name = 'torch'"
        )


def _tokenizer_of(model: str, *, trust_remote_code: bool) -> Any:
    """Check a model's files before any process starts, and return its tokenizer.

    Raises:
        ConfigError: a file is missing or unusable.
    """
    from transformers import AutoConfig, AutoTokenizer  # noqa: PLC0415

    if is_adapter(Path(model)):
        raise ConfigError(
            f"Model {model!r} is the low-rank adapter of a checkpoint without the model it belongs "
            f"to: merge them with agl.export_weights(checkpoint, directory)"
        )
    try:
        AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise ConfigError(f"Cannot load model {model!r}: {error}") from error
    if not tokenizer.encode("a", add_special_tokens=False):
        # If the file is missing, transformers creates a tokenizer with an empty vocabulary.
        raise ConfigError(f"Cannot load model {model!r}: its tokenizer knows no text")
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            f"Model {model!r} has no chat template: use an instruction-tuned model, or put a "
            f"chat_template.jinja beside its tokenizer"
        )
    if Path(model).is_dir() and not any(any(Path(model).glob(each)) for each in _WEIGHTS):
        raise ConfigError(f"Cannot load model {model!r}: it holds no {' or '.join(_WEIGHTS)}")
    return tokenizer

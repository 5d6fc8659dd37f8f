"""Protocols of backends, of the gateway before them, and of the engine that has the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any, Final, Protocol

import msgspec

from agl_core.errors import ConfigError
from agl_core.types import Attempt, Batch, LogprobsMode, Losses, Policy, Rollout, Update

COUNT_PATH: Final = "/tokenize"
"""Path for counting tokens: below an agent's base URL; at a backend's server not below ``/v1``."""
PROMPT_REFUSED: Final = "prompt_refused"
"""Error code, with status 400, if the chat template does not accept the messages."""
NOT_COUNTED: Final = 501
"""Status if the backend cannot count tokens."""
RAW_PROMPT: Final = "{{ messages[0]['content'] }}"
"""The ``chat_template`` of a chat request whose only message is the whole prompt, as its writer
wrote it. A backend that takes no template from a request refuses it."""


class BackendReply(Protocol):
    """A response of a backend, with its status known and its body still to be received."""

    status: int
    headers: Mapping[str, str]

    def body(self) -> AsyncIterator[bytes]:
        """Yield the raw body: one JSON document, or server-sent events in arbitrary pieces."""
        ...

    async def close(self) -> None:
        """Stop receiving, so that the backend stops generating. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Counted:
    """The length of a prompt."""

    tokens: int
    """Including the tokens that open the answer."""
    limit: int | None = None
    """Most tokens of prompt and answer together; None if unknown."""


class CountAnswer(msgspec.Struct, frozen=True):
    """`Counted` as the answer to a request for a token count."""

    count: int
    max_model_len: int | None = None


class Scored(msgspec.Struct, frozen=True):
    """The log-probabilities of given tokens, by weights of one version."""

    logprobs: list[float]
    """One per token of the answer, after temperature."""
    version: int


class Backend(ABC):
    """Base class of servers of OpenAI chat completions, in the process or over HTTP.

    A backend must define `chat`. All other members are optional and have a default.

    A training backend honours ``return_token_ids`` and ``logprobs``: it returns a top-level
    ``prompt_token_ids`` (in a stream, in the first chunk), ``choices[].token_ids`` (in a stream, as
    deltas) and one log-probability per sampled token, including the end-of-sequence token.
    """

    model: str = ""
    """The backend's name of the weights, for requests. Default: the policy's model."""

    @abstractmethod
    async def chat(
        self, body: bytes, *, headers: Mapping[str, str], timeout_s: float
    ) -> BackendReply:
        """Send one request body unchanged.

        Raises:
            EngineError: the backend does not answer. An HTTP error status is an answer.
        """

    async def close(self) -> None:  # noqa: B027 (optional, not abstract)
        """Release connections; idempotent. Default: do nothing."""

    async def detokenize(self, token_ids: Sequence[int]) -> str | None:  # noqa: ARG002
        """Return the text of ids; control tokens are left out, or spelled out like ``<|im_end|>``.

        Default: None, unknown.
        """
        return None

    async def context_length(self) -> int | None:
        """Return the most tokens of prompt and answer together. Default: None, unknown."""
        return None

    async def score(
        self, prompt: Sequence[int], answer: Sequence[int], *, temperature: float
    ) -> Scored | None:
        """Return how probable the ids of an answer are with the weights that serve now.

        Default: None, the backend cannot compute it.

        Raises:
            ValueError: prompt and answer do not fit into the model's context.
            EngineError: the backend does not answer.
        """
        del prompt, answer, temperature
        return None

    async def count_tokens(self, body: bytes) -> Counted | None:  # noqa: ARG002
        """Return the length of a chat request's prompt, by the model's chat template.

        Default: None, unknown.

        Raises:
            ValueError: the chat template refuses the messages.
            EngineError: the backend does not answer.
        """
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The token data that a probe received from a backend."""

    token_ids: bool
    stream_token_ids: bool
    logprobs: LogprobsMode


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayUse:
    """A trainer's settings for a gateway in another process; runners use the defaults."""

    deterministic: bool = False
    """Seed the calls of frozen policies too."""
    backend_host: str = "127.0.0.1"
    """Address of this machine under which the gateway reaches the engines of this process."""
    tls: SSLContext | None = None
    """TLS of the server there; None: it speaks plain HTTP."""


class Gateway(Protocol):
    """The proxy that records exact tokens. One per run, shared by all attempts."""

    @property
    def url(self) -> str:
        """The address, ``http://host:port`` without a path."""
        ...

    @property
    def client_key(self) -> str:
        """Bearer token of the run's clients, for the process environment; it opens no attempt."""
        ...

    def attempt_key(self, rollout_id: str, attempt_id: str) -> str:
        """Return the bearer token for the calls, rewards and traces of only this attempt."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def route(self, policy: Policy, backend: Backend) -> None:
        """Serve `policy` from `backend`; a repeated call replaces the version or the backend."""
        ...

    async def probe(self, policy: str) -> Capabilities:
        """Request a few tokens from the policy's backend and report the token data received.

        Raises:
            MissingTokensError: the policy is trainable and the backend returns no token ids.
        """
        ...

    async def open(self, rollout: Rollout, attempt: Attempt) -> None:
        """Accept calls of this attempt, with its seed and deadline, from now on."""
        ...

    async def flush(self, attempt_id: str) -> None:
        """Write an attempt's records to the store, after a short wait for calls in flight."""
        ...

    async def seal(self, attempt_id: str) -> int:
        """Refuse further calls, end those in flight, flush the records; return their number."""
        ...

    async def pause(self) -> None:
        """Hold new calls until `resume`."""
        ...

    async def drain(self, *, timeout_s: float) -> int:
        """Wait for calls in flight; calls longer than `timeout_s` are aborted and retried."""
        ...

    async def resume(self) -> None: ...

    async def lost(self) -> Losses:
        """Return the losses by cause since `start`; a repeated request returns the same."""
        ...


Renderer = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], Sequence[int]]
"""Turns messages and tools into token ids, by a chat template. If the last message is the
assistant's, they end with the token that ends its answer, or with the whole text if the rendering
does not continue that of the messages before it. Otherwise they end with the start of the
assistant's turn, as a prompt does. Raises ValueError if the template refuses the messages, or
writes no end token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSetup:
    """The settings of the chosen algorithm that an engine trains with."""

    name: str
    loss_factory: Callable[[], Any]
    """Makes the algorithm's loss. Raises ConfigError if the engine has no loss of that name, or the
    loss does not take the algorithm's options."""
    seed: int = 0
    """The run's seed; all random numbers of an update derive from it."""
    lr: float = 1e-5
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    epochs: int = 1
    """Passes over one batch."""
    minibatches: int = 1
    """Optimizer steps per pass; whole groups stay together."""
    kl_weight: float = 0.0
    """Weight of the k3 divergence to the frozen reference; 0 loads no reference."""
    token_numbers: bool = False
    """Whether updates are to have `Update.tokens`, if the engine can compute them."""


class Engine(ABC):
    """Base class of engines, which serve policies and, if `trains` is true, train them.

    Every engine defines `start`, `stop` and `backend`. An engine that trains sets `trains` and
    defines `update`, `save`, `load` and `fingerprint`. All other members are optional abilities:
    an engine declares one by overriding it; the default means that the engine does not have it.
    `agl_testing.engine_contract` compares the declared abilities with the engine's behaviour.

    Tensor work runs off the event loop.
    """

    trains: bool = False
    """False for engines that only serve; `update` then raises ConfigError."""

    @abstractmethod
    async def start(self, policies: Sequence[Policy]) -> None:
        """Load every policy's weights.

        Raises:
            ConfigError: a model path is wrong or its tokenizer has no chat template.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Release the resources of `start`, also after `start` failed; idempotent."""

    @abstractmethod
    def backend(self, policy: str) -> Backend:
        """Return the backend of a policy."""

    async def update(self, batch: Batch) -> Update:
        """Train ``batch.policy`` on the batch and serve the new version before returning."""
        raise self.only_serves(f"update policy {batch.policy!r}")

    async def configure(self, setup: AlgorithmSetup) -> None:  # noqa: ARG002
        """Train with another setup from now on; weights and optimizer state stay.

        Called before each algorithm phase of a run whose phases differ. Such an engine is made with
        the setup of the first phase and the greatest `kl_weight` of all. Default: refuse.

        Raises:
            ConfigError: the engine cannot do this.
        """
        raise ConfigError(
            f"{type(self).__name__} trains with one setting of the algorithm in all phases: give "
            f"the phases the same options and the same loss, or choose another engine"
        )

    def check_setup(self, setup: AlgorithmSetup) -> None:  # noqa: B027
        """Check a setup that `configure` will get, before `start`. Default: accept it.

        Raises:
            ConfigError: the engine cannot train with it.
        """

    async def save(self, policy: str, directory: str, *, resumable: bool = True) -> None:  # noqa: ARG002
        """Write weights and tokenizer as a servable directory.

        Files that only a resumption needs are named ``training_state*``; an export leaves them
        out. An engine that defines `export` may leave unchanged weights out of a resumable
        directory.
        """
        raise self.only_serves(f"save policy {policy!r}")

    async def load(self, policy: str, directory: str, *, version: int) -> None:  # noqa: ARG002
        """Restore a directory that `save` wrote, as `version`."""
        raise self.only_serves(f"load policy {policy!r}")

    async def fingerprint(self, policy: str) -> str:
        """Return the sha256 of the names and bytes of the policy's weights."""
        raise self.only_serves(f"read the weights of policy {policy!r}")

    def only_serves(self, action: str) -> ConfigError:
        """Return the error of an engine that cannot train."""
        return ConfigError(
            f"{type(self).__name__} only serves and cannot {action}: choose an engine that trains; "
            f"`agl plugins` lists the engines"
        )

    @property
    def overlaps(self) -> bool:
        """Whether the engine trains while it serves, by `train` and `publish`. Default: no."""
        return False

    async def train(self, batch: Batch) -> Update:
        """Train ``batch.policy`` while the old version serves; the new one does not serve yet.

        Called instead of `update` if `overlaps` is true.
        """
        raise NotImplementedError

    async def publish(self, policy: str) -> None:
        """Serve the version that was trained last. No call is in flight."""
        raise NotImplementedError

    def vocab_size(self, policy: str) -> int | None:  # noqa: ARG002
        """Return the number of token rows of the weights; every recorded id is below it.

        Default: None, unknown.
        """
        return None

    def shows_tools(self, policy: str) -> bool | None:  # noqa: ARG002
        """Return whether tools change the prompt that the model's chat template renders.

        Default: None, unknown.
        """
        return None

    def image_token(self, policy: str) -> int | None:  # noqa: ARG002
        """Return the placeholder id for each part of an image in a prompt.

        Default: None, the policy takes only text.
        """
        return None

    @staticmethod
    def renderer(model: str) -> Renderer | None:  # noqa: ARG004
        """Return the renderer of a model's conversations, without loading its weights.

        Default: None, unknown.

        Raises:
            ConfigError: the model's tokenizer cannot be loaded, or has no chat template.
        """
        return None

    @staticmethod
    async def export(source: str, target: str) -> None:
        """Convert a policy's directory in a checkpoint to one that any program can serve.

        Default: copy it without ``training_state*``.

        Args:
            source: A directory that `save` wrote.
            target: Created if missing; gets no ``training_state*``.

        Raises:
            ConfigError: a file that the directory refers to is missing.
        """
        import asyncio  # noqa: PLC0415  integrations import this module, and need neither
        import shutil  # noqa: PLC0415

        ignored = shutil.ignore_patterns("training_state*")
        await asyncio.to_thread(shutil.copytree, source, target, ignore=ignored, dirs_exist_ok=True)

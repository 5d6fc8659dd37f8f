"""Where calls go: backends, the gateway in front of them, and the engine that owns the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agl_core.errors import ConfigError
from agl_core.types import Attempt, Batch, LogprobsMode, Losses, Policy, Rollout, Update


class BackendReply(Protocol):
    """An answer being received: the status at once, the body as it comes."""

    status: int
    headers: Mapping[str, str]

    def body(self) -> AsyncIterator[bytes]:
        """Raw body: one JSON document, or server-sent events cut anywhere."""
        ...

    async def close(self) -> None:
        """Stop receiving; the backend stops generating. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Counted:
    """The length of a prompt."""

    tokens: int
    """The opening of the answer included."""
    limit: int | None = None
    """Tokens that prompt and answer may have together; None where it is not known."""


class Backend(ABC):
    """Base class of what answers OpenAI chat completions, in or out of process.

    A backend must define `chat`. All other members are optional and have a default.

    A training backend honours ``return_token_ids`` and ``logprobs``: top-level
    ``prompt_token_ids``, ``choices[].token_ids`` (deltas in a stream, the prompt's ids in its first
    chunk) and one log-probability per sampled token, the end-of-sequence token included.
    """

    model: str = ""
    """The backend's name for the weights, for requests. Default: the policy's model."""

    @abstractmethod
    async def chat(
        self, body: bytes, *, headers: Mapping[str, str], timeout_s: float
    ) -> BackendReply:
        """Send one request body as it stands.

        Raises:
            EngineError: no answer could be had. An HTTP error status is an answer.
        """

    async def close(self) -> None:  # noqa: B027 (optional, not abstract)
        """Release connections; idempotent. Default: there are none."""

    async def detokenize(self, token_ids: Sequence[int]) -> str | None:  # noqa: ARG002
        """Text of ids; control tokens have none, or are spelled out like ``<|im_end|>``.

        Default: None, not known.
        """
        return None

    async def context_length(self) -> int | None:
        """Tokens that a prompt and its answer may have together. Default: None, not known."""
        return None

    async def count_tokens(self, body: bytes) -> Counted | None:  # noqa: ARG002
        """Length of the prompt that a chat request makes by the model's chat template.

        Default: None, not known.

        Raises:
            ValueError: the chat template refuses the messages.
            EngineError: the backend does not answer.
        """
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a probe found a backend to give."""

    token_ids: bool
    stream_token_ids: bool
    logprobs: LogprobsMode


class Gateway(Protocol):
    """The proxy that records exact tokens. One per run, shared by all attempts."""

    @property
    def url(self) -> str:
        """``http://host:port`` without a path."""
        ...

    @property
    def client_key(self) -> str:
        """Bearer token of the run's clients, for the process environment; it opens no attempt."""
        ...

    def attempt_key(self, rollout_id: str, attempt_id: str) -> str:
        """Bearer token that opens the calls, rewards and traces of this attempt alone."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def route(self, policy: Policy, backend: Backend) -> None:
        """Serve `policy` from `backend`; calling again replaces the version or the backend."""
        ...

    async def probe(self, policy: str) -> Capabilities:
        """Ask the policy's backend for a few tokens and report what came back.

        Raises:
            MissingTokensError: the policy is trainable and the backend gives no token ids.
        """
        ...

    async def open(self, rollout: Rollout, attempt: Attempt) -> None:
        """Accept calls of this attempt from now on; seeds and deadlines come from it."""
        ...

    async def flush(self, attempt_id: str) -> None:
        """Write what is recorded of an attempt so far; calls under way are waited for briefly."""
        ...

    async def seal(self, attempt_id: str) -> int:
        """Refuse further calls, end those in flight, flush their records; returns their number."""
        ...

    async def pause(self) -> None:
        """Hold new calls until `resume`."""
        ...

    async def drain(self, *, timeout_s: float) -> int:
        """Wait for calls in flight; those that outlive `timeout_s` are aborted and retried."""
        ...

    async def resume(self) -> None: ...

    async def lost(self) -> Losses:
        """Losses by cause since `start`; a repeated request returns the same."""
        ...


Renderer = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], Sequence[int]]
"""From messages and tools to the token ids of the whole conversation, by a model's chat template.
Raises ValueError where the template refuses them."""


class Engine(ABC):
    """Base class of what serves policies and, where `trains` is true, trains them.

    Every engine defines `start`, `stop` and `backend`. One that trains sets `trains` and defines
    `update`, `save`, `load` and `fingerprint`. All other members are optional abilities: an engine
    declares one by overriding it, and the default says that the engine does not have it.
    `agl_testing.engine_contract` compares what is declared with what the engine does.

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
        """Release what `start` took, also where it failed; idempotent."""

    @abstractmethod
    def backend(self, policy: str) -> Backend:
        """What answers the calls of a policy."""

    async def update(self, batch: Batch) -> Update:
        """Train ``batch.policy`` on the batch; the new version serves when this returns."""
        raise self.only_serves(f"update policy {batch.policy!r}")

    async def save(self, policy: str, directory: str, *, resumable: bool = True) -> None:  # noqa: ARG002
        """Write weights and tokenizer as a servable directory.

        What only a resumption needs goes to files named ``training_state*``, which an export
        leaves out. An engine with an `export` of its own may leave out of a resumable directory
        what training did not change.
        """
        raise self.only_serves(f"save policy {policy!r}")

    async def load(self, policy: str, directory: str, *, version: int) -> None:  # noqa: ARG002
        """Restore what `save` wrote, as `version`."""
        raise self.only_serves(f"load policy {policy!r}")

    async def fingerprint(self, policy: str) -> str:
        """sha256 over the names and bytes of the policy's weights."""
        raise self.only_serves(f"read the weights of policy {policy!r}")

    def only_serves(self, action: str) -> ConfigError:
        """The error of an engine that only serves and is asked to do more."""
        return ConfigError(
            f"{type(self).__name__} only serves and cannot {action}: choose an engine that trains, "
            f"such as engine.name = 'torch'"
        )

    @property
    def overlaps(self) -> bool:
        """Whether the engine trains while it serves, by `train` and `publish`. Default: no."""
        return False

    async def train(self, batch: Batch) -> Update:
        """Train ``batch.policy`` while the old version answers calls; the new one is not served.

        Called where `overlaps` is true, in place of `update`.
        """
        raise NotImplementedError

    async def publish(self, policy: str) -> None:
        """Serve what was trained last. No call is in flight."""
        raise NotImplementedError

    def vocab_size(self, policy: str) -> int | None:  # noqa: ARG002
        """Number of token ids that the weights have a row for; every recorded id is below it.

        Default: None, not known.
        """
        return None

    def shows_tools(self, policy: str) -> bool | None:  # noqa: ARG002
        """Whether the model's chat template renders another prompt with tools than without.

        Default: None, not known.
        """
        return None

    def image_token(self, policy: str) -> int | None:  # noqa: ARG002
        """The id that stands in a prompt for each part of an image.

        Default: None, the policy takes text alone.
        """
        return None

    @staticmethod
    def renderer(model: str) -> Renderer | None:  # noqa: ARG004
        """How conversations with a model become tokens, without its weights.

        Default: None, not known.

        Raises:
            ConfigError: the model's tokenizer cannot be loaded, or has no chat template.
        """
        return None

    @staticmethod
    async def export(source: str, target: str) -> None:
        """Write a policy's directory of a checkpoint as one that any program can serve.

        Default: copy it without ``training_state*``.

        Args:
            source: What `save` wrote.
            target: Made when missing; gets no ``training_state*``.

        Raises:
            ConfigError: something that the directory refers to is not there.
        """
        import asyncio  # noqa: PLC0415  integrations import this module, and need neither
        import shutil  # noqa: PLC0415

        ignored = shutil.ignore_patterns("training_state*")
        await asyncio.to_thread(shutil.copytree, source, target, ignore=ignored, dirs_exist_ok=True)

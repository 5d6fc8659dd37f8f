"""Where calls go: backends, the gateway in front of them, and the engine that owns the weights."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

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


class Backend(Protocol):
    """Something that answers OpenAI chat completions, in or out of process.

    A training backend honours ``return_token_ids`` and ``logprobs``: top-level
    ``prompt_token_ids``, ``choices[].token_ids`` (deltas in a stream, the prompt's ids in its first
    chunk) and one log-probability per sampled token, the end-of-sequence token included.
    """

    async def chat(
        self, body: bytes, *, headers: Mapping[str, str], timeout_s: float
    ) -> BackendReply:
        """Send one request body as it stands.

        Raises:
            EngineError: no answer could be had. An HTTP error status is an answer.
        """
        ...

    async def close(self) -> None: ...


@runtime_checkable
class LegibleBackend(Protocol):
    """What a `Backend` may offer besides, for ``agl doctor``; None wherever it cannot be told."""

    async def text_of(self, token_ids: Sequence[int]) -> str | None:
        """Text of ids; control tokens have none, or are spelled out like ``<|im_end|>``."""
        ...

    async def context_length(self) -> int | None:
        """Tokens that a prompt and its answer may have together."""
        ...


@dataclass(frozen=True, slots=True)
class Counted:
    """The length of a prompt."""

    tokens: int
    """The opening of the answer included."""
    limit: int | None = None
    """Tokens that prompt and answer may have together; None where it is not known."""


@runtime_checkable
class CountingBackend(Protocol):
    """What a `Backend` may offer besides: the length of a prompt by its own chat template."""

    async def count_tokens(self, body: bytes) -> Counted | None:
        """Length of the prompt that a chat request makes; None where this cannot be told.

        Raises:
            ValueError: the chat template refuses the messages.
            EngineError: the backend does not answer.
        """
        ...


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
        """Hold new calls at the door."""
        ...

    async def drain(self, *, timeout_s: float) -> int:
        """Wait for calls in flight; those that outlive `timeout_s` are aborted and retried."""
        ...

    async def resume(self) -> None: ...

    async def lost(self) -> Losses:
        """What no record tells, by cause, since `start`; repeated requests tell the same."""
        ...


class Engine(Protocol):
    """Serves policies and, if it can, trains them. Tensor work runs off the event loop."""

    trains: bool
    """False for engines that only serve; `update` then raises ConfigError."""

    async def start(self, policies: Sequence[Policy]) -> None:
        """Load every policy's weights.

        Raises:
            ConfigError: a model path is wrong or its tokenizer has no chat template.
        """
        ...

    async def stop(self) -> None: ...

    def backend(self, policy: str) -> Backend: ...

    async def update(self, batch: Batch) -> Update:
        """Train ``batch.policy`` on the batch; the new version serves when this returns."""
        ...

    async def save(self, policy: str, directory: str, *, resumable: bool = True) -> None:
        """Write weights and tokenizer as a servable directory.

        What only a resumption needs goes to files named ``training_state*``, which an export
        leaves out. An `ExportingEngine` may leave out of a resumable one what did not change.
        """
        ...

    async def load(self, policy: str, directory: str, *, version: int) -> None:
        """Restore what `save` wrote, as `version`."""
        ...

    async def fingerprint(self, policy: str) -> str:
        """sha256 over the names and bytes of the policy's weights."""
        ...


@runtime_checkable
class ChecksModel(Protocol):
    """What the options of an engine may offer besides: to look at a model before it is loaded.

    They are read before the engine's libraries are imported, which can take a minute.
    """

    def check_model(self, model: str) -> None:
        """Check a policy's model as far as this goes without those libraries.

        Raises:
            ConfigError: it cannot be loaded.
        """
        ...


@runtime_checkable
class OverlappingEngine(Protocol):
    """What an `Engine` may offer besides: to train while it serves. Its `update` does both at once."""

    @property
    def overlaps(self) -> bool:
        """Whether it does as it is configured; `train` and `publish` are not called otherwise."""
        ...

    async def train(self, batch: Batch) -> Update:
        """Train ``batch.policy`` while the old version answers calls; the new one is not served."""
        ...

    async def publish(self, policy: str) -> None:
        """Serve what was trained last. No call is in flight."""
        ...


@runtime_checkable
class VocabularyEngine(Protocol):
    """What an `Engine` may offer besides: the size of each policy's vocabulary."""

    def vocab_size(self, policy: str) -> int | None:
        """Number of token ids that its weights have a row for; every recorded id is below it."""
        ...


@runtime_checkable
class ToolsEngine(Protocol):
    """What an `Engine` may offer besides: whether its models are shown the tools of a request."""

    def shows_tools(self, policy: str) -> bool:
        """Whether the model's chat template renders another prompt with tools than without."""
        ...


Renderer = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], Sequence[int]]
"""From messages and tools to the token ids of the whole conversation, by a model's chat template.
Raises ValueError where the template refuses them."""


@runtime_checkable
class RenderingEngine(Protocol):
    """What the class of an `Engine` may offer besides: to render conversations without weights."""

    @staticmethod
    def renderer(model: str) -> Renderer:
        """How conversations with a model become tokens.

        Raises:
            ConfigError: the model's tokenizer cannot be loaded, or has no chat template.
        """
        ...


@runtime_checkable
class ExportingEngine(Protocol):
    """What an `Engine`'s class may offer besides: to make a servable directory of what it saved."""

    @staticmethod
    async def export(source: str, target: str) -> None:
        """Write a policy's directory of a checkpoint as one that any program can serve.

        Args:
            source: What `Engine.save` wrote.
            target: Made when missing; gets no ``training_state*``.

        Raises:
            ConfigError: something that the directory refers to is not there.
        """
        ...


@runtime_checkable
class SeeingEngine(Protocol):
    """What an `Engine` may offer besides: to train policies that are shown images."""

    def image_token(self, policy: str) -> int | None:
        """The id that stands in a prompt for each part of an image; None for text alone."""
        ...

"""The Protocols through which rooms meet; `agl_core.app` alone constructs what fulfils them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agl_core.types import (
    AgentReturn,
    Attempt,
    AttemptStatus,
    Batch,
    CallCredit,
    Claim,
    Evaluation,
    Failure,
    Finding,
    Ingest,
    LogprobsMode,
    Losses,
    Policy,
    Report,
    Resources,
    Rollout,
    RolloutQuery,
    Scope,
    Span,
    StepReport,
    Task,
    Trajectory,
    TrajectoryGroup,
    Triplet,
    Update,
)

if TYPE_CHECKING:
    from pydantic import BaseModel


class Store(Protocol):
    """Durable record of rollouts, attempts, spans and resources. Twelve methods, batch first.

    Every method may be called from any task of the loop the store was opened on. Ids sort by time.
    Terminal states are final. All writes are atomic and survive a crash once acknowledged.
    """

    async def enqueue(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Queue rollouts. An id that exists with equal content is left alone (idempotent).

        Raises:
            StoreError: an id exists with other content.
        """
        ...

    async def claim(
        self, worker: str, *, limit: int = 1, timeout_s: float | None = None
    ) -> list[Claim]:
        """Hand out up to `limit` queued rollouts, oldest first, each with a fresh fenced attempt.

        Waits until at least one is there; returns an empty list after `timeout_s`.
        """
        ...

    async def heartbeat(self, attempt_ids: Sequence[str]) -> list[str]:
        """Extend the leases of running attempts; returns the ids that are not running any more."""
        ...

    async def finish(
        self,
        attempt_id: str,
        *,
        status: AttemptStatus,
        spans: Sequence[Span] = (),
        failure: Failure | None = None,
        output: Any = None,
    ) -> Attempt:
        """End, seal and record an attempt in one atomic write, and settle its rollout.

        A failure whose kind is in ``limits.retry_on`` re-queues the rollout while attempts remain.
        Repeating the same finish is answered with the stored attempt.

        Raises:
            StaleAttemptError: the attempt ended otherwise or was replaced by a higher fence.
        """
        ...

    async def cancel(self, rollout_ids: Sequence[str], *, reason: str) -> list[Rollout]:
        """Cancel rollouts that are not final; their running attempts end as CANCELLED."""
        ...

    async def add_spans(self, spans: Sequence[Span]) -> Ingest:
        """Record spans of running attempts in one write; late and repeated ones are counted."""
        ...

    async def spans(
        self, rollout_ids: Sequence[str], *, attempt_id: str | None = None
    ) -> list[Span]:
        """Spans of rollouts (of one attempt), by rollout id, then in each attempt's stable order."""
        ...

    async def rollouts(self, query: RolloutQuery) -> list[Rollout]:
        """Rollouts with their attempts, one page by ascending id."""
        ...

    async def wait(
        self, rollout_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[Rollout]:
        """Wait until every rollout is final and its last attempt sealed; pushed, not polled.

        Returns the final ones in the order asked for, all of them unless `timeout_s` passed.

        Raises:
            StoreError: an id does not exist.
        """
        ...

    async def consume(self, rollout_ids: Sequence[str]) -> int:
        """Mark final rollouts as used for training; retention may drop their spans from now on."""
        ...

    async def publish(self, resources: Resources) -> Resources:
        """Store a new immutable version and return it numbered.

        Content equal to the latest version's, number and time apart, is that version: a repeated
        request is answered with it.
        """
        ...

    async def resources(self, version: int | None = None) -> Resources | None:
        """One version, or the latest; None when there is none.

        Raises:
            StoreError: the version does not exist.
        """
        ...


class StoreLifecycle(Store, Protocol):
    """A store as the composition root holds it."""

    async def open(self) -> None:
        """Open the medium, start the watchdog, re-queue attempts that a crash left running."""
        ...

    async def close(self) -> None:
        """Flush and stop; idempotent."""
        ...

    async def lead(self, instance: str, *, lease_s: float) -> None:
        """Become the one trainer of this store, or stay it, for `lease_s` from now; 0 gives it back.

        The lead outlives a restart of the store. Giving back what another instance holds does
        nothing.

        Raises:
            LeadHeldError: a StoreError naming the instance that holds it and until when.
        """
        ...


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
    def api_key(self) -> str: ...

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
        leaves out.
        """
        ...

    async def load(self, policy: str, directory: str, *, version: int) -> None:
        """Restore what `save` wrote, as `version`."""
        ...

    async def fingerprint(self, policy: str) -> str:
        """sha256 over the names and bytes of the policy's weights."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSetup:
    """What an engine needs to know of the chosen algorithm to train."""

    name: str
    loss_factory: Callable[[], Any]
    """Makes the algorithm's loss. Raises ConfigError where the engine has none of that name, or it
    does not take the options that the algorithm gives."""
    seed: int = 0
    """Of the run; everything random in an update derives from it."""
    lr: float = 1e-5
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    epochs: int = 1
    """Passes over one batch."""
    minibatches: int = 1
    """Optimizer steps per pass; whole groups stay together."""
    kl_weight: float = 0.0
    """Weight of the k3 divergence to the frozen reference; 0 loads no reference."""


class Algorithm(Protocol):
    """An advantage plus a loss: everything that makes GRPO differ from RLOO."""

    def credit(self, group: TrajectoryGroup) -> list[CallCredit]:
        """Advantage and weight streams of every trained choice of the group.

        Raises:
            TrainingError: the group is empty.
        """
        ...

    @property
    def loss(self) -> str: ...

    @property
    def loss_options(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One ended attempt with everything recorded of it, as adapters take it."""

    rollout: Rollout
    attempt: Attempt
    spans: list[Span]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedAttempt:
    """What an adapter made of one attempt; mappings are keyed by trained agent."""

    rollout_id: str
    attempt_id: str
    group_id: str
    task_id: str
    trajectories: Mapping[str, Sequence[Trajectory]]
    """Agents with at least one sample; empty in validation and test rollouts."""
    returns: Mapping[str, AgentReturn]
    """The same agents as `trajectories`."""
    score: float
    """Total return: every reward of the attempt, whatever its target, weighted by channel."""
    channels: Mapping[str, float]
    """Unweighted sum of the attempt's rewards per channel."""
    calls: int
    """Calls that gave an answer, of every agent."""
    seen: frozenset[str]
    """Every agent that spoke or ran, trained or not."""
    losses: Losses


class Adapter(Protocol):
    """Turns one ended attempt into trajectories and returns."""

    def adapt(self, record: AttemptRecord) -> AdaptedAttempt:
        """Join, select and credit. An attempt that failed is taken without its rewards.

        Raises:
            CaptureError: what was recorded is not exactly true; the whole attempt is unusable.
            RewardError: no reward arrived, or one is not finite or hits nothing.
        """
        ...

    def check(self, seen: Collection[str]) -> None:
        """Compare the agents to train with those that were seen.

        Raises:
            ConfigError: a name or glob matches nobody.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditedCall:
    """One sampled choice with what it earned and the group it earned it in."""

    triplet: Triplet
    credit: CallCredit
    group: int
    """0, 1, ... in the order of the batch's groups."""


class ForestBuilder(Protocol):
    """Lays the sampled choices of one policy out as a `Batch`."""

    def __call__(self, calls: Sequence[CreditedCall], *, policy: str, step: int) -> Batch:
        """Build the batch; equal input gives equal arrays, whatever its order.

        Raises:
            TrainingError: there is nothing to lay out, or credits and tokens do not align.
        """
        ...


class RewardFunction(Protocol):
    """Scores an attempt in the runner; may be async. A mapping gives one reward per channel."""

    def __call__(self, task: Task, output: Any, attempt: AttemptRecord) -> Any: ...


class Check(Protocol):
    """Looks for a framework's pitfalls in what a trial of a few tasks recorded."""

    def __call__(self, records: Sequence[AttemptRecord], config: Any) -> Iterable[Finding]:
        """Give what was found in the ended attempts, under the run's `RunConfig`.

        Asked once, while agl is attached; nothing is given where the framework took no part.
        """
        ...


class Observer(Protocol):
    """Watches a run from outside: the progress display. Called on the run's loop, in order."""

    def started(self, config: Any) -> None:
        """The rooms are open, no rollout is queued yet; `config` is the run's `RunConfig`."""
        ...

    def step(self, report: StepReport) -> None:
        """A step is done and its weights serve."""
        ...

    def evaluation(self, evaluation: Evaluation) -> None:
        """The agents have been scored."""
        ...

    def finished(self, report: Report) -> None:
        """The run has ended well."""
        ...


class Integration(Protocol):
    """A framework's hooks, installed for as long as agl is attached to the process."""

    name: str

    def attach(self) -> None:
        """Install the framework's native hooks; called once until `detach`."""
        ...

    def detach(self) -> None:
        """Remove them and restore what was there."""
        ...

    def identity(self) -> Scope | None:
        """Scope read from the framework's own context, in the task that sends; None: no opinion."""
        ...


@runtime_checkable
class Register(Protocol):
    """The callback that ``agl_register_*`` hooks are handed."""

    def __call__(
        self,
        name: str,
        target: str,
        *,
        extra: str | None = None,
        config: type[BaseModel] | str | None = None,
        summary: str = "",
    ) -> None:
        """Offer `target`, ``"module:attribute"``, under `name`; it is imported on first use.

        Args:
            name: Chosen by this name in the configuration.
            target: Where the factory lives.
            extra: The extra of agl-core that brings its framework.
            config: pydantic model (or ``"module:attribute"`` of one) of its options.
            summary: One line for ``agl plugins``.
        """
        ...

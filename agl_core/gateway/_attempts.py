"""The attempts whose calls the gateway accepts, and the calls of each."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from agl_core.clocks import monotonic, wall_ns
from agl_core.errors import StaleAttemptError
from agl_core.gateway._chat import ChatRequest, derive_seed
from agl_core.gateway._replay import Replay, resumable
from agl_core.interfaces import Identity, JsonObjects, Problem, Rewrite
from agl_core.serving import asgi
from agl_core.types import Attempt, Losses, Rollout, Span

_REMEMBERED: Final = 100_000
"""Number of sealed attempts that are refused as ended; older ones are refused as unknown."""

UNKNOWN: Final = "attempt_unknown"
"""Error code for a call of an attempt that this gateway has not opened."""
_OVERDUE_S: Final = 120.0
"""An attempt that is still open this long after its deadline has lost its runner."""

Abort = Literal["", "client", "sealed", "drained", "deadline", "stopped"]


class ProxiedCall(msgspec.Struct, eq=False, kw_only=True):
    """One request of a client: one try of a call."""

    id: str
    identity: Identity
    attempt: OpenAttempt
    request: ChatRequest
    headers: dict[str, str]
    """The client's headers that are forwarded to the backend."""
    tries: int
    sequence: int
    started_ns: int
    policy: str = ""
    """Name of the policy that serves the call."""
    trainable: bool = False
    """The call's tokens are recorded for training."""
    output: asgi.CountedSend | None = None
    """Counts the bytes sent to the client; None if they are not counted."""
    translated: bool = False
    """The client speaks a dialect other than chat completions."""
    forwarded: bool = False
    """The client has received the head of an answer."""
    exchanging: bool = False
    """The exchange with the backend is running."""
    abort: Abort = ""
    """Why the exchange was cancelled; empty if it was not."""
    recorded: bool = False
    """The call has ended and its record was made."""
    _work: asyncio.Task[Any] | None = None
    """The task that `stop` cancels; None except while an exchange runs or waits to run."""
    _cancellations: int = 0
    """How often `stop` has cancelled `_work`."""
    _exchange_over: asyncio.Future[None] | None = None
    _ended: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Make `stop` cancel the current task, until `finish`."""
        self._work = asyncio.current_task()

    def finish(self) -> None:
        """Mark the exchange as over, whether it completed or was stopped.

        Undoes the cancellations of `stop`, so that the task can still send an error.
        """
        if self._work is not None:
            for _ in range(self._cancellations):
                self._work.uncancel()
        self._work, self._cancellations, self.exchanging = None, 0, False
        if self._exchange_over is not None:
            self._exchange_over.set_result(None)
            self._exchange_over = None

    def exchange_over(self) -> asyncio.Future[None]:
        """Return a future that is done when the running exchange is over."""
        if self._exchange_over is None:
            self._exchange_over = asyncio.get_running_loop().create_future()
        return self._exchange_over

    def ended(self) -> asyncio.Future[None]:
        """Return a future that is done when the call is `recorded`."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            if self.recorded:
                self._ended.set_result(None)
        return self._ended

    def end(self) -> None:
        """Mark the call as recorded."""
        if not self.recorded and self._ended is not None:
            self._ended.set_result(None)
        self.recorded = True

    def rewrite(self, losses: Losses) -> None:
        """Apply the changes of plugins to the request, once: a drained call runs again."""
        request = self.request
        if self.attempt.rewrites and not request.rewritten:
            request.rewrite(
                *self.attempt.rewritten(self.identity, request.messages, request.tools, losses)
            )

    def stop(self, reason: Abort) -> None:
        """Cancel the exchange with the backend unless it is over.

        The first reason is kept, except that any other reason replaces ``drained``, because a
        drained call runs again.
        """
        if self._work is None:
            return
        if self.abort in ("", "drained"):
            self.abort = reason
        self._cancellations += 1
        self._work.cancel()


@dataclass(eq=False, slots=True)
class OpenAttempt:
    """One attempt whose calls the gateway accepts or is finishing."""

    rollout: Rollout
    attempt: Attempt
    deadline: float
    """Time of the deadline on the monotonic clock."""
    replay: Replay | None = None
    """Recorded answers of the attempt before."""
    rewrites: tuple[Rewrite, ...] = ()
    """Changes of plugins to its calls."""
    sealed: bool = False
    calls: set[ProxiedCall] = field(default_factory=set[ProxiedCall])
    """Requests in progress."""
    tries: Counter[str] = field(default_factory=Counter[str])
    """Call id to the number of tries that have begun."""
    recorded: int = 0
    aliases: dict[str, str] = field(default_factory=dict[str, str])
    """Agent to the alias of its first call; the alias is empty if the call had none."""
    _ready: list[Span] = field(default_factory=list[Span])
    _latest: dict[str, Span] = field(default_factory=dict[str, Span])
    _asked: Counter[tuple[str, bytes]] = field(default_factory=Counter[tuple[str, bytes]])
    _seeds: dict[str, int] = field(default_factory=dict[str, int])
    _sequence: int = 0
    _timer: asyncio.TimerHandle | None = None

    def watch_deadline(self) -> None:
        """Start the timer that stops all running calls at the deadline."""
        seconds = max(self.seconds_left(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._pass_deadline)

    def _pass_deadline(self) -> None:
        if self.seconds_left() > 0:  # the loop's clock is coarser
            self.watch_deadline()
            return
        for call in tuple(self.calls):
            call.stop("deadline")

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def begin(
        self, identity: Identity, request: ChatRequest, headers: dict[str, str]
    ) -> ProxiedCall:
        """Register a request as the next try of its call, which supersedes the try before."""
        call = ProxiedCall(
            id=identity.call_id,
            identity=identity,
            attempt=self,
            request=request,
            headers=headers,
            tries=self.next_try(identity.call_id),
            sequence=self.next_sequence(),
            started_ns=wall_ns(),
        )
        self.calls.add(call)
        return call

    def check_alias(self, identity: Identity) -> None:
        """Check that an agent keeps the alias of its first call.

        Raises:
            Problem: 409; the alias differs.
        """
        first = self.aliases.setdefault(identity.agent, identity.alias)
        if first != identity.alias:
            message = (
                f"Agent {identity.agent!r} calls with x-agl-alias {identity.alias!r}, but its "
                f"first call in attempt {identity.attempt_id!r} had {first!r}: set one alias "
                f"before the agent's first call and send it with every call"
            )
            raise Problem(409, "alias_conflict", message)

    def rewritten(
        self, identity: Identity, messages: JsonObjects, tools: JsonObjects, losses: Losses
    ) -> tuple[JsonObjects, JsonObjects]:
        """Return the messages and tools that are sent for those of a request."""
        for rewrite in self.rewrites:
            messages, tools = rewrite(identity, messages, tools, losses)
        return messages, tools

    def next_try(self, call_id: str) -> int:
        """Return the number of a try that begins now, and mark the try before as superseded.

        A record that is already in the store is not changed: a join uses the record with the
        highest try.
        """
        self.tries[call_id] += 1
        if (earlier := self._latest.pop(call_id, None)) is not None:
            self._ready.append(_superseded(earlier))
        return self.tries[call_id]

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def keep(self, span: Span) -> None:
        """Add the record of a try that has ended."""
        call = span.call
        assert call is not None
        if self.tries[call.id] > call.tries:
            self._ready.append(_superseded(span))
        else:
            self._latest[call.id] = span
        self.recorded += 1

    def end(self, call: ProxiedCall) -> None:
        """Mark a request as recorded."""
        self.calls.discard(call)
        call.end()

    def take(self, *, ended_before_ns: int | None) -> list[Span]:
        """Remove and return records to be written; all of them if `ended_before_ns` is None.

        A later try can mark a record as superseded only before the record is written. So the record
        of a failed try, which its client will probably repeat, is kept until the attempt is sealed,
        and that of a successful try until no client can still be retrying it.
        """
        written = self._ready
        self._ready = []
        if ended_before_ns is None:
            written += self._latest.values()
            self._latest.clear()
            return written
        settled: list[str] = []
        for call_id, span in self._latest.items():
            if span.end_ns > ended_before_ns:
                break  # the following ones ended later
            if span.status == "ok":
                settled.append(call_id)
        written += [self._latest.pop(call_id) for call_id in settled]
        return written

    def put_back(self, spans: list[Span]) -> None:
        """Put back records that could not be written."""
        self._ready[:0] = spans

    def seed(self, call: ProxiedCall) -> int:
        """Return the seed of a call, the same for each of its tries; see `derive_seed`."""
        if call.id not in self._seeds:
            digest = call.request.digest()
            key = (call.identity.agent, digest)
            self._seeds[call.id] = derive_seed(
                self.rollout.seed,
                agent=call.identity.agent,
                digest=digest,
                occurrence=self._asked[key],
            )
            self._asked[key] += 1
        return self._seeds[call.id]

    @property
    def unwritten(self) -> list[Span]:
        """Records that are not in the store."""
        return [*self._ready, *self._latest.values()]

    @property
    def resumable(self) -> bool:
        """Whether a later attempt of the rollout can be answered from this attempt's records."""
        return resumable(self.rollout)

    def seconds_left(self) -> float:
        return self.deadline - monotonic()

    @property
    def overrides(self) -> dict[str, Any]:
        """Sampling parameters that the run sets on trained calls."""
        return self.rollout.metadata.get("sampling") or {}


def _superseded(span: Span) -> Span:
    assert span.call is not None
    return msgspec.structs.replace(span, call=msgspec.structs.replace(span.call, superseded=True))


class Attempts:
    """Open attempts by id, and the ids of those that were sealed."""

    def __init__(self, *, restartable: bool = False) -> None:
        """Create an empty collection.

        Args:
            restartable: Unknown attempts may have begun in an earlier instance of the gateway.
        """
        self._restartable = restartable
        self._open: dict[str, OpenAttempt] = {}
        self._sealed: OrderedDict[str, int] = OrderedDict()

    def open(
        self,
        rollout: Rollout,
        attempt: Attempt,
        replay: Replay | None = None,
        *,
        rewrites: tuple[Rewrite, ...] = (),
    ) -> None:
        """Accept calls of an attempt; opening it again changes nothing.

        Raises:
            StaleAttemptError: the attempt has been sealed.
        """
        known = self._open.get(attempt.id)
        if attempt.id in self._sealed or (known is not None and known.sealed):
            raise StaleAttemptError(
                f"Attempt {attempt.id!r} of rollout {rollout.id!r} has been sealed: "
                f"claim the rollout again for a new attempt"
            )
        if known is None:
            deadline = attempt.monotonic_deadline(rollout.limits)
            opened = OpenAttempt(rollout, attempt, deadline, replay, rewrites)
            self._open[attempt.id] = opened
            opened.watch_deadline()

    def close(self) -> None:
        """Cancel the timers of the attempts that were never sealed."""
        for attempt in self._open.values():
            attempt.close()

    def find(self, attempt_id: str) -> OpenAttempt | None:
        """Return an attempt that is open or being sealed; None for any other."""
        return self._open.get(attempt_id)

    def forget(self, attempt_id: str) -> None:
        """Remove a sealed attempt whose records are written."""
        sealed = self._open.pop(attempt_id)
        sealed.close()
        self._sealed[attempt_id] = sealed.recorded
        while len(self._sealed) > _REMEMBERED:
            self._sealed.popitem(last=False)

    def admit(self, identity: Identity) -> OpenAttempt:
        """Return the open attempt of a request.

        Raises:
            Problem: 410 if the attempt is sealed; 409 if it is unknown or belongs to another
                rollout, or 503 in a restartable gateway, which may have lost it in a restart.
        """
        attempt = self._open.get(identity.attempt_id)
        if identity.attempt_id in self._sealed or (attempt is not None and attempt.sealed):
            message = f"Attempt {identity.attempt_id!r} has ended: it accepts no further calls"
            raise Problem(410, "attempt_sealed", message)
        if attempt is None or attempt.rollout.id != identity.rollout_id:
            raise self._unknown(identity)
        return attempt

    def _unknown(self, identity: Identity) -> Problem:
        what = f"No attempt {identity.attempt_id!r} of rollout {identity.rollout_id!r} is running"
        if self._restartable:
            message = f"{what}, or it began before this gateway was restarted"
            return Problem(503, UNKNOWN, message)
        message = f"{what}: take both ids from the current rollout"
        return Problem(409, UNKNOWN, message)

    def recorded(self, attempt_id: str) -> int:
        """Return the number of records of a sealed attempt; 0 for an unknown one."""
        return self._sealed.get(attempt_id, 0)

    def left_behind(self, rollout: Rollout, fence: int) -> list[OpenAttempt]:
        """Return attempts that no runner will seal: older ones of the rollout, and overdue ones."""
        return [
            each
            for each in self._open.values()
            if (each.rollout.id == rollout.id and each.attempt.fence < fence)
            or each.seconds_left() < -_OVERDUE_S
        ]

    def __iter__(self) -> Iterator[OpenAttempt]:
        return iter(list(self._open.values()))

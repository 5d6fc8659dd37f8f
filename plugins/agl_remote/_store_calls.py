"""The store's methods as remote calls: name, request type and response type of each.

Requests and responses are encoded as msgpack with the store's codec, which preserves all text and
numbers. Each span is encoded separately, so that a span with unusual values does not slow down the
others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from agl_core.store import Codec, Pruned
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Claim,
    Failure,
    Ingest,
    Resources,
    Rollout,
    RolloutQuery,
)

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class StoreMethod(Generic[Q, A]):
    """One remote method with the codecs of its request and response."""

    name: str
    question: Codec[Q]
    answer: Codec[A]


class Claiming(msgspec.Struct, frozen=True, kw_only=True):
    worker: str
    limit: int
    timeout_s: float | None
    claim_id: str


class Finishing(msgspec.Struct, frozen=True, kw_only=True):
    attempt_id: str
    status: AttemptStatus
    spans: list[bytes]
    failure: Failure | None
    output: Any


class Cancelling(msgspec.Struct, frozen=True, kw_only=True):
    rollout_ids: list[str]
    reason: str


class SpanReading(msgspec.Struct, frozen=True, kw_only=True):
    rollout_ids: list[str]
    attempt_id: str | None


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    rollout_ids: list[str]
    timeout_s: float | None


class Version(msgspec.Struct, frozen=True, kw_only=True):
    number: int | None


class Leading(msgspec.Struct, frozen=True, kw_only=True):
    instance: str
    lease_s: float


class Pruning(msgspec.Struct, frozen=True, kw_only=True):
    rollout_ids: list[str]
    dry_run: bool


_NAMES: Final = Codec(list[str])
_BLOBS: Final = Codec(list[bytes])
_ROLLOUTS: Final = Codec(list[Rollout])
_NOTHING: Final[Codec[None]] = Codec(type(None))

HELLO: Final = StoreMethod("store-hello", _NOTHING, _NOTHING)
"""A call without effect, whose response confirms that key, version and server are right."""
ENQUEUE: Final = StoreMethod("store-enqueue", _ROLLOUTS, _ROLLOUTS)
CLAIM: Final = StoreMethod("store-claim", Codec(Claiming), Codec(list[Claim]))
HAND_BACK: Final = StoreMethod("store-hand-back", _NAMES, _NOTHING)
"""A call that undoes claims, given by id, whose callers disconnected before the response."""
HEARTBEAT: Final = StoreMethod("store-heartbeat", _NAMES, _NAMES)
FINISH: Final = StoreMethod("store-finish", Codec(Finishing), Codec(Attempt))
CANCEL: Final = StoreMethod("store-cancel", Codec(Cancelling), _ROLLOUTS)
ADD_SPANS: Final = StoreMethod("store-add-spans", _BLOBS, Codec(Ingest))
SPANS: Final = StoreMethod("store-spans", Codec(SpanReading), _BLOBS)
ROLLOUTS: Final = StoreMethod("store-rollouts", Codec(RolloutQuery), _ROLLOUTS)
WAIT: Final = StoreMethod("store-wait", Codec(Waiting), _ROLLOUTS)
CONSUME: Final = StoreMethod("store-consume", _NAMES, Codec(int))
PUBLISH: Final = StoreMethod("store-publish", Codec(Resources), Codec(Resources))
RESOURCES: Final = StoreMethod("store-resources", Codec(Version), Codec(list[Resources]))
"""A call whose response is a list of one version, or an empty list."""
LEAD: Final = StoreMethod("store-lead", Codec(Leading), _NOTHING)
PRUNE: Final = StoreMethod("store-prune", Codec(Pruning), Codec(Pruned))

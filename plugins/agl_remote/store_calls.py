"""The store's methods as calls over a connection: names, and what each takes and gives.

Both directions are msgpack in the store's own codec, so text and numbers arrive as any medium keeps
them. Each span is a blob of its own, so that one with unusual values does not slow down the others.
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
    """One method: its name, and what travels in each direction."""

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


class Reading(msgspec.Struct, frozen=True, kw_only=True):
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
"""Does nothing: a caller that gets an answer has the right key, version and server."""
ENQUEUE: Final = StoreMethod("store-enqueue", _ROLLOUTS, _ROLLOUTS)
CLAIM: Final = StoreMethod("store-claim", Codec(Claiming), Codec(list[Claim]))
HAND_BACK: Final = StoreMethod("store-hand-back", _NAMES, _NOTHING)
"""Takes the ids of claims whose callers left before they had an answer."""
HEARTBEAT: Final = StoreMethod("store-heartbeat", _NAMES, _NAMES)
FINISH: Final = StoreMethod("store-finish", Codec(Finishing), Codec(Attempt))
CANCEL: Final = StoreMethod("store-cancel", Codec(Cancelling), _ROLLOUTS)
ADD_SPANS: Final = StoreMethod("store-add-spans", _BLOBS, Codec(Ingest))
SPANS: Final = StoreMethod("store-spans", Codec(Reading), _BLOBS)
ROLLOUTS: Final = StoreMethod("store-rollouts", Codec(RolloutQuery), _ROLLOUTS)
WAIT: Final = StoreMethod("store-wait", Codec(Waiting), _ROLLOUTS)
CONSUME: Final = StoreMethod("store-consume", _NAMES, Codec(int))
PUBLISH: Final = StoreMethod("store-publish", Codec(Resources), Codec(Resources))
RESOURCES: Final = StoreMethod("store-resources", Codec(Version), Codec(list[Resources]))
"""Gives one or none."""
LEAD: Final = StoreMethod("store-lead", Codec(Leading), _NOTHING)
PRUNE: Final = StoreMethod("store-prune", Codec(Pruning), Codec(Pruned))

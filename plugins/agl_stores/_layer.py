"""The base class of layers of stores."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from agl_core.errors import ConfigError
from agl_core.interfaces import StoreLifecycle
from agl_core.store import Prunable, Pruned, Readable
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Claim,
    Failure,
    Ingest,
    Resources,
    Rollout,
    RolloutQuery,
    Span,
)


class LayerOptions(BaseModel):
    """Base of the options of a layer: ``register(name, factory, config=MyOptions)``.

    The factory is called as ``factory(options, store)``. See `agl_register_layers`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    always: ClassVar[bool] = False
    """Whether the layer is also used without its section in a configuration, with None for options."""
    order: ClassVar[int] = 0
    """The layer with the lowest order is next to the records."""


class StoreLayer:
    """A store that passes every call on to another store; a layer overrides what it changes.

    A layer that is between two processes and a server runs in the processes: the server stores what
    the layer gives it.
    """

    def __init__(self, store: StoreLifecycle) -> None:
        self.inner = store
        """The store that the layer passes calls on to."""

    @property
    def confidential(self) -> bool:
        """Whether what is read here must not be kept elsewhere, such as in an index."""
        return isinstance(self.inner, StoreLayer) and self.inner.confidential

    def around(self, store: StoreLifecycle) -> Self:
        """Return a layer like this one around another store."""
        other = copy(self)
        other.inner = store
        return other

    def reader(self) -> StoreLifecycle:
        """Return the layer around the inner store's reader; see `agl_core.store.Readable`.

        The inner store is opened for reading and writing if it has no reader.
        """
        return self.around(self.inner.reader() if isinstance(self.inner, Readable) else self.inner)

    def shown(self) -> StoreLifecycle:
        """Return a store that is only read for people: no record is an error for a layer.

        A layer that cannot read all records overrides it, and lets a text stand for them.
        """
        return self.around(self.inner.shown()) if isinstance(self.inner, StoreLayer) else self

    async def prune(self, rollout_ids: Sequence[str], *, dry_run: bool = False) -> Pruned:
        """Permanently delete spans of final rollouts; see `agl_core.store.Prunable`.

        Raises:
            ConfigError: the inner store is not `Prunable`.
        """
        if not isinstance(self.inner, Prunable):
            raise ConfigError(
                f"A {type(self.inner).__name__} cannot delete the spans of single rollouts"
            )
        return await self.inner.prune(rollout_ids, dry_run=dry_run)

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def lead(self, instance: str, *, lease_s: float) -> None:
        await self.inner.lead(instance, lease_s=lease_s)

    async def enqueue(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        return await self.inner.enqueue(rollouts)

    async def claim(
        self, worker: str, *, limit: int = 1, timeout_s: float | None = None
    ) -> list[Claim]:
        return await self.inner.claim(worker, limit=limit, timeout_s=timeout_s)

    async def heartbeat(self, attempt_ids: Sequence[str]) -> list[str]:
        return await self.inner.heartbeat(attempt_ids)

    async def finish(
        self,
        attempt_id: str,
        *,
        status: AttemptStatus,
        spans: Sequence[Span] = (),
        failure: Failure | None = None,
        output: Any = None,
    ) -> Attempt:
        return await self.inner.finish(
            attempt_id, status=status, spans=spans, failure=failure, output=output
        )

    async def cancel(self, rollout_ids: Sequence[str], *, reason: str) -> list[Rollout]:
        return await self.inner.cancel(rollout_ids, reason=reason)

    async def add_spans(self, spans: Sequence[Span]) -> Ingest:
        return await self.inner.add_spans(spans)

    async def spans(
        self, rollout_ids: Sequence[str], *, attempt_id: str | None = None
    ) -> list[Span]:
        return await self.inner.spans(rollout_ids, attempt_id=attempt_id)

    async def rollouts(self, query: RolloutQuery) -> list[Rollout]:
        return await self.inner.rollouts(query)

    async def wait(
        self, rollout_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[Rollout]:
        return await self.inner.wait(rollout_ids, timeout_s=timeout_s)

    async def consume(self, rollout_ids: Sequence[str]) -> int:
        return await self.inner.consume(rollout_ids)

    async def publish(self, resources: Resources) -> Resources:
        return await self.inner.publish(resources)

    async def resources(self, version: int | None = None) -> Resources | None:
        return await self.inner.resources(version)

"""Rollouts by key: each runs once, also if the run was interrupted meanwhile."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, TypeVar

import msgspec

from agl_core.errors import StoreError
from agl_core.interfaces import AttemptRecord
from agl_core.training import RolloutPlan, TuningSetup
from agl_core.types import (
    FailureKind,
    Mode,
    PromptTemplate,
    Rollout,
    RolloutQuery,
    RolloutStatus,
    Task,
)
from agl_tuning._outcomes import cancelled

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

KEY: Final = "prompt_rollout"
"""Key of ``Rollout.metadata``: identifies the rollout within its run, also after a resumption."""
_AT_ONCE: Final = 64
"""Rollouts whose records are in memory in full at a time."""
_INFRASTRUCTURE: Final = (FailureKind.ENGINE, FailureKind.LOST)
ABANDONED: Final = "rollouts_abandoned"
"""Cause that counts the rollouts of an interrupted run, when it is resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRollout:
    """A rollout to run, or to find among those of an interrupted run."""

    key: str
    """Identifies it within the `Runs`."""
    task: Task
    mode: Mode
    group_id: str
    seed: int
    prompts: Mapping[str, PromptTemplate]
    """The prompts that are served to it."""


class Runs:
    """Runs rollouts by key, within a scope in which equal keys mean equal rollouts.

    A resumed run finds the finished rollouts of the interrupted one in the store. Rollouts that were
    cancelled run again, and so do those at the end that failed for reasons outside of the agent: a
    person may have removed the cause before resuming.
    """

    def __init__(
        self, setup: TuningSetup, *, scope: str, after_id: str, progress: Callable[[int], None]
    ) -> None:
        """Create it without reading the store.

        Args:
            setup: The run's components.
            scope: Name of the scope, which is the same when the run is resumed.
            after_id: Id of a rollout that is older than all of the scope; empty if unknown.
            progress: Called with the number of rollouts that have ended.
        """
        self._setup = setup
        self._scope = scope
        self._after_id = after_id
        self._progress = progress
        self._ended = 0
        self._finished: dict[str, str] = {}
        """Key to the id of its rollout, of those that ended."""
        self._open: set[str] = set()
        """Ids of queued rollouts whose end was not seen."""
        self._versions: dict[str, tuple[int, int]] = {}
        """Digest of published prompts to the version of the resources and their step."""
        self._publishing = asyncio.Lock()

    async def find(self) -> None:
        """Find the finished rollouts of an interrupted run in the store.

        Raises:
            StoreError: the store failed.
        """
        failed: list[str] = []
        query = RolloutQuery(
            run_id=self._setup.config.name,
            statuses=(RolloutStatus.SUCCEEDED, RolloutStatus.FAILED),
            after_id=self._after_id or None,
        )
        while page := await self._setup.source.store.rollouts(query):
            for rollout in page:
                scope, _, key = str(rollout.metadata.get(KEY, "")).partition("/")
                if scope == self._scope:
                    self._finished[key] = rollout.id
                    failed = [*failed, key] if _is_infrastructure(rollout) else []
            query = msgspec.structs.replace(query, after_id=page[-1].id)
        for key in failed:
            self._finished.pop(key, None)
        self._setup.losses.add(ABANDONED, -len(self._finished))

    async def run(
        self, wanted: Sequence[KeyedRollout], take: Callable[[AttemptRecord], _T]
    ) -> list[_T]:
        """Run what is not finished, and return what `take` makes of each record, in order.

        Raises:
            StoreError: the store failed.
        """
        fresh = {each.key: each for each in wanted if each.key not in self._finished}
        await self._queue([*fresh.values()])
        taken: list[_T] = []
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            records = await self._collect(part)
            taken += [take(records[self._finished[each.key]]) for each in part]
            self._ended += len(part)
            self._progress(self._ended)
        return taken

    async def consume(self) -> None:
        """Mark all rollouts of the scope as consumed, when none of them is needed any more.

        Raises:
            StoreError: the store failed.
        """
        ids = [*dict.fromkeys(self._finished.values())]
        for start in range(0, len(ids), 1000):
            await self._setup.source.store.consume(ids[start : start + 1000])

    async def close(self) -> None:
        """Cancel the rollouts that are under way; the store keeps those that ended."""
        left, self._open = sorted(self._open), set()
        if not left:
            return
        try:
            await self._setup.source.store.cancel(left, reason="the prompt phase has ended")
        except StoreError:  # it must not replace the error that ended the phase
            _log.warning("%d rollouts of an ended prompt phase stay queued", len(left))

    async def _queue(self, wanted: Sequence[KeyedRollout]) -> None:
        """Queue rollouts, and name the ids in `_finished`."""
        if not wanted:
            return
        rollouts = [await self._rollout(each) for each in wanted]
        self._open.update(rollout.id for rollout in rollouts)
        await self._setup.source.queue(rollouts)
        for each, rollout in zip(wanted, rollouts, strict=True):
            self._finished[each.key] = rollout.id

    async def _collect(self, wanted: Sequence[KeyedRollout]) -> dict[str, AttemptRecord]:
        """Return the records by rollout id, once all have ended."""
        records = await self._records(wanted)
        dropped = [each for each in wanted if _is_dropped(records[self._finished[each.key]])]
        if dropped:  # the retention of the store deleted what an ended phase had consumed
            await self._queue(dropped)
            records |= await self._records(dropped)
        return records

    async def _records(self, wanted: Sequence[KeyedRollout]) -> dict[str, AttemptRecord]:
        source = self._setup.source
        ids = [self._finished[each.key] for each in wanted]
        records = {record.rollout.id: record for record in await source.collect(ids)}
        self._open.difference_update(ids)
        missing = [id_ for id_ in ids if id_ not in records]
        if missing:
            query = RolloutQuery(ids=tuple(missing), limit=len(missing))
            found = await source.store.rollouts(query)
            records |= {rollout.id: cancelled(rollout) for rollout in found}
        return records

    async def _rollout(self, wanted: KeyedRollout) -> Rollout:
        version, step = await self._published(wanted.prompts)
        plan = RolloutPlan(
            tasks=[wanted.task],
            samples=1,
            mode=wanted.mode,
            step=step,
            resources_version=version,
        )
        [made] = self._setup.source.make(plan)
        return msgspec.structs.replace(
            made,
            group_id=wanted.group_id,
            seed=wanted.seed,
            metadata={**made.metadata, KEY: f"{self._scope}/{wanted.key}"},
        )

    async def _published(self, prompts: Mapping[str, PromptTemplate]) -> tuple[int, int]:
        """Publish the prompts as a version of the resources, once; return it and its step."""
        digest = digest_of({name: msgspec.to_builtins(each) for name, each in prompts.items()})
        async with self._publishing:
            if digest not in self._versions:
                resources = await self._setup.publish(prompts)
                self._versions[digest] = resources.version, resources.step
            return self._versions[digest]


def digest_of(value: object) -> str:
    """Return 16 hex digits that identify a JSON value."""
    return sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _is_infrastructure(rollout: Rollout) -> bool:
    attempt = rollout.attempt
    failure = attempt.failure if attempt is not None else None
    return failure is not None and failure.kind in _INFRASTRUCTURE


def _is_dropped(record: AttemptRecord) -> bool:
    return record.rollout.consumed and not record.spans

"""The gateway's side of captured prompts: which prompts replace the texts of a rollout's agents."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from agl_core.interfaces import AttemptRecord, Rewrite, Store
from agl_core.types import PromptTemplate, Rollout

__all__ = ["CapturedPrompts"]

_VERSIONS: Final = 256
"""Number of versions of the resources that are kept in memory."""


class CapturedPrompts:
    """Rewriter of the system prompts and tool descriptions that programs send themselves.

    It acts by the rollout's version of the resources, which the store has.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rewrites: OrderedDict[int, Rewrite | None] = OrderedDict()

    async def prepare(self, rollout: Rollout) -> Rewrite | None:
        """See `agl_core.interfaces.Rewriter`.

        Raises:
            StoreError: the store has no such version, or it failed.
        """
        version = rollout.resources_version
        if not version:
            return None
        if version not in self._rewrites:
            self._rewrites[version] = await self._load(version)
            while len(self._rewrites) > _VERSIONS:
                self._rewrites.popitem(last=False)
        return self._rewrites[version]

    async def _load(self, version: int) -> Rewrite | None:
        resources = await self._store.resources(version)
        items = resources.items.values() if resources is not None else ()
        captured = [
            item for item in items if isinstance(item, PromptTemplate) and item.known is not None
        ]
        if not captured:
            return None
        # A run without captured prompts does not import what replaces them.
        from agl_prompts._captured import RequestPrompts  # noqa: PLC0415

        return RequestPrompts(captured)

    def learn(
        self, records: Sequence[AttemptRecord], *, name: str, agents: Sequence[str], tool: str = ""
    ) -> PromptTemplate:
        """See `agl_core.interfaces.LearnsPrompts`.

        Raises:
            ConfigError: see `agl_prompts._captured_learn.learn`.
        """
        from agl_prompts._captured_learn import learn  # noqa: PLC0415

        return learn(records, name=name, agents=agents, tool=tool)

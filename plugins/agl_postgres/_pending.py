"""Writes of a transaction that are not sent yet: one statement per table sends them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

from agl_stores import key

Statement = tuple[LiteralString, list[Any]]

_ROLLOUTS: Final[LiteralString] = (
    "INSERT INTO agl_rollouts (id, run_id, group_id, mode, body, status, consumed) "
    "SELECT id, run_id, group_id, mode, body, status, consumed FROM unnest("
    "%b::text[], %b::text[], %b::text[], %b::text[], %b::bytea[], %b::text[], %b::boolean[]) "
    "WITH ORDINALITY AS one (id, run_id, group_id, mode, body, status, consumed, n) ORDER BY n"
)
_STATES: Final[LiteralString] = (
    "UPDATE agl_rollouts SET status = %s, consumed = %s WHERE id = ANY(%s)"
)
_ATTEMPTS: Final[LiteralString] = (
    "INSERT INTO agl_attempts (id, rollout, running, due_at, digest, body) "
    "SELECT id, (SELECT number FROM agl_rollouts WHERE agl_rollouts.id = one.rollout), "
    "running, due_at, digest, body FROM unnest("
    "%b::text[], %b::text[], %b::boolean[], %b::float8[], %b::bytea[], %b::bytea[]) "
    "WITH ORDINALITY AS one (id, rollout, running, due_at, digest, body, n) ORDER BY n "
    "ON CONFLICT (id) DO UPDATE SET running = excluded.running, "
    "due_at = excluded.due_at, digest = excluded.digest, body = excluded.body"
)
_SPANS: Final[LiteralString] = (
    "INSERT INTO agl_spans (attempt, id, body) "
    "SELECT * FROM unnest(%b::bigint[], %b::text[], %b::bytea[])"
)


@dataclass(slots=True)
class PendingWrites:
    """The last state of every row that the transaction writes, and its new spans."""

    rollouts: dict[str, tuple[str, str, str, bytes]] = field(
        default_factory=dict[str, tuple[str, str, str, bytes]]
    )
    """Run, group, mode and body of the new rollouts, by id."""
    states: dict[str, tuple[str, bool]] = field(default_factory=dict[str, tuple[str, bool]])
    """Status and `consumed` of rollouts, by id."""
    attempts: dict[str, tuple[str, bool, float, bytes, bytes]] = field(
        default_factory=dict[str, tuple[str, bool, float, bytes, bytes]]
    )
    """Rollout, whether it runs, when it is due, digest and body of attempts, by id."""
    spans: list[tuple[int, str, bytes]] = field(default_factory=list[tuple[int, str, bytes]])
    """Number of the attempt, id and body."""
    size: int = 0
    """Bytes of the spans' bodies."""

    def __bool__(self) -> bool:
        return bool(self.states or self.attempts or self.spans)

    def add_spans(self, number: int, spans: Sequence[tuple[str, bytes]]) -> None:
        self.spans += [(number, key(span_id), blob) for span_id, blob in spans]
        self.size += sum(len(blob) for _, blob in spans)

    def take(self) -> Iterator[Statement]:
        """Yield statements with their values, and forget the writes."""
        if self.rollouts:
            yield _ROLLOUTS, _columns(self._inserted())
        yield from self._updates()
        if self.attempts:
            rows = [
                (key(one), key(rollout), *rest) for one, (rollout, *rest) in self.attempts.items()
            ]
            yield _ATTEMPTS, _columns(rows)
        if self.spans:
            yield _SPANS, _columns(self.spans)
        self.rollouts, self.states, self.attempts, self.spans = {}, {}, {}, []
        self.size = 0

    def _inserted(self) -> list[tuple[Any, ...]]:
        return [
            (key(one), key(run), key(group), key(mode), body, *self.states.pop(one))
            for one, (run, group, mode, body) in self.rollouts.items()
        ]

    def _updates(self) -> Iterator[Statement]:
        changed: dict[tuple[str, bool], list[str]] = {}
        for one, state in self.states.items():
            changed.setdefault(state, []).append(key(one))
        for state, ids in changed.items():
            yield _STATES, [*state, ids]


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    return [list(column) for column in zip(*rows, strict=True)]

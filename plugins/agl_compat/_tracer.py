"""``tracer.trace`` and a picture of the last trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import agl_core
from agl_compat._names import renamed
from agl_core.errors import ConfigError
from agl_core.tracing import Recorder
from agl_core.types import Span, SpanKind

_KINDS: Final = ("tree_graph",)
_SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Trace:
    """The spans of one traced block, in order; the first is its root."""

    name: str
    spans: list[Span]

    def visualize(self, kind: str = "tree_graph") -> str:
        """Return the trace as text: one line per span, indented below its parent.

        Raises:
            ConfigError: the kind is unknown.
        """
        if kind not in _KINDS:
            raise ConfigError(
                f"visualize got {kind!r}: known are {', '.join(_KINDS)}; agl dashboard shows more"
            )
        children: dict[str | None, list[Span]] = defaultdict(list)
        known = {span.id for span in self.spans}
        for span in self.spans:
            children[span.parent_id if span.parent_id in known else None].append(span)
        return "\n".join(_lines(children, None, ""))


class BlockTracer:
    """Records spans of blocks outside and inside rollouts."""

    @contextmanager
    def trace(
        self,
        name: str,
        input: Any = None,  # noqa: A002  the field's name
    ) -> Generator[Recorder, None, None]:
        """Record the spans of a block; see `agl_core.trace`."""
        renamed("tracer.trace", "agl.trace(name, input)")
        recorder: Recorder | None = None
        try:
            with agl_core.trace(name, input) as recorder:
                yield recorder
        finally:
            if recorder is not None:
                _LAST.set(Trace(name, _of_block(name, recorder.snapshot())))

    def last_trace(self) -> Trace:
        """Return the last trace that ended in this context.

        Raises:
            ConfigError: there is none.
        """
        trace = _LAST.get()
        if trace is None:
            raise ConfigError("There is no trace yet: run code inside `with tracer.trace(name):`")
        return trace


_LAST: Final[ContextVar[Trace | None]] = ContextVar("agl_compat_last_trace", default=None)
tracer: Final = BlockTracer()


def _of_block(name: str, spans: Iterable[Span]) -> list[Span]:
    """Return the newest span with a name and all below it; a rollout may have others."""
    ordered = [*spans]
    roots = [span for span in ordered if span.kind is SpanKind.OPERATION and span.name == name]
    if not roots:
        return ordered
    inside = {roots[-1].id}
    found: list[Span] = []
    for span in ordered:
        if span.id in inside or span.parent_id in inside:
            inside.add(span.id)
            found.append(span)
    return found


def _lines(
    children: dict[str | None, list[Span]], parent: str | None, indent: str
) -> Generator[str, None, None]:
    rows = children.get(parent, [])
    for number, span in enumerate(rows, 1):
        last = number == len(rows)
        branch = "" if parent is None else ("└─ " if last else "├─ ")
        yield f"{indent}{branch}{_label(span)}"
        below = "" if parent is None else ("   " if last else "│  ")
        yield from _lines(children, span.id, indent + below)


def _label(span: Span) -> str:
    parts = [f"{span.kind.value} {span.name}"]
    if span.agent and span.agent != span.name:
        parts.append(f"({span.agent})")
    if span.reward is not None:
        parts.append(f"= {span.reward.value:g}")
    if span.end_ns > span.start_ns:
        parts.append(f"{(span.end_ns - span.start_ns) / _SECOND_NS:.3f} s")
    if span.status == "error":
        parts.append(f"error: {span.error}")
    return " ".join(parts)

"""The page of one rollout: its tree in time, what was said, its siblings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import parse_qsl

import msgspec
from agl_reading import Cursor, RolloutRow, RowFilter, RowQuery, rewards_of, usage_of
from agl_records import export_lines

from agl_core.errors import ConfigError
from agl_core.types import Attempt, Rollout, RolloutQuery, Span, SpanKind
from agl_dashboard._chat import answers, conversation
from agl_dashboard._marks import RolloutMarks, rollout_marks
from agl_dashboard._panel import Page, PlainAnswer, View
from agl_dashboard._sources import ShownRun
from agl_dashboard._steps import shown_step
from agl_dashboard._text import at_path, cut, pretty
from agl_dashboard._tree import TreeLine, tree
from agl_dashboard.panels._rollouts import STATE, RowList

CHUNK: Final = 300
_SIBLINGS: Final = 64
_KEPT: Final = 4
_NS_PER_S: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTree:
    """A rollout with the tree of one attempt."""

    rollout: Rollout
    attempt: Attempt | None
    nodes: Sequence[TreeLine]

    def span(self, span_id: str) -> Span | None:
        return next((node.span for node in self.nodes if node.span.id == span_id), None)


class TracePanel:
    """The tree of a rollout, and one span of it in detail."""

    title = ""
    order = 30
    scope: Literal["all", "run"] = "run"

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], AttemptTree] = {}
        """Trees of attempts that change no more, the last ones."""

    async def page(self, view: View) -> Page | PlainAnswer:
        shown = await self._read(view)
        marks = await rollout_marks(view, shown.rollout.id)
        part = view.query.get("part", "")
        if part == "rows":
            asked = [piece for piece in _pieces(view, shown) if piece.rows]
            return _fragment(view.template("spans.html", view=view, pieces=asked, marks=marks))
        if part == "detail":
            return _fragment(_detail(view, shown, marks))
        if part == "text":
            return _text(view, shown)
        if part == "export":
            return _export(view, shown.rollout)
        rollout = shown.rollout
        own = [node.span for node in shown.nodes]
        body = view.template(
            "trace.html",
            view=view,
            shown=shown,
            rollout=rollout,
            attempt=shown.attempt,
            channels=rewards_of(own),
            seconds=_seconds(shown.attempt),
            step=shown_step(rollout.mode, rollout.step),
            tokens=_tokens(own),
            siblings=await _siblings(view.run, rollout),
            neighbours=await _neighbours(view, rollout.id),
            back=view.url("rollouts", **_list_state(view.query.get("from", ""))),
            detail=_detail(view, shown, marks),
            marks=marks,
            pieces=_pieces(view, shown),
        )
        return Page(title=f"Rollout of {rollout.task.id}", body=body, scripts=("trace", "marks"))

    async def _read(self, view: View) -> AttemptTree:
        run, rollout_id = view.run, view.rest
        found = await run.store.rollouts(RolloutQuery(ids=(rollout_id,), limit=1))
        if not found:
            raise ConfigError(f"There is no rollout {rollout_id!r} in this run")
        rollout = found[0]
        wanted = view.query.get("attempt", "")
        attempt = next((each for each in rollout.attempts if each.id == wanted), rollout.attempt)
        if attempt is None:
            return AttemptTree(rollout=rollout, attempt=None, nodes=())
        key = (f"{run.version.partition('.')[0]} {run.name}", attempt.id)
        kept = self._kept.get(key)
        if kept is not None and kept.rollout == rollout:
            return kept
        spans = await run.store.spans([rollout_id], attempt_id=attempt.id)
        nodes = await asyncio.to_thread(tree, spans)
        shown = AttemptTree(rollout=rollout, attempt=attempt, nodes=nodes)
        if attempt.sealed:
            self._kept[key] = shown
            while len(self._kept) > _KEPT:
                del self._kept[next(iter(self._kept))]
        return shown


def make_panel() -> TracePanel:
    return TracePanel()


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePiece:
    """Neighbouring lines of a tree; their number stands for them until they come into view."""

    start: int
    length: int
    rows: Sequence[TreeLine] = ()
    """Empty until the piece comes into view."""


def _pieces(view: View, shown: AttemptTree) -> list[TreePiece]:
    """Return all pieces of a tree, with the lines of the one that is asked for."""
    selected = view.query.get("span", "")
    given = view.query.get("at", "")
    at = int(given) if given.isdecimal() and len(given) < 9 else 0  # noqa: PLR2004
    if not given and selected:
        at = next((i for i, each in enumerate(shown.nodes) if each.span.id == selected), 0)
    at = min(at, max(len(shown.nodes) - 1, 0)) // CHUNK * CHUNK
    return [_piece(shown, start, start == at) for start in range(0, len(shown.nodes), CHUNK)]


def _piece(shown: AttemptTree, start: int, loaded: bool) -> TreePiece:
    rows = shown.nodes[start : start + CHUNK]
    return TreePiece(start=start, length=len(rows), rows=rows if loaded else ())


def _detail(view: View, shown: AttemptTree, marks: RolloutMarks) -> Any:
    span = shown.span(view.query.get("span", ""))
    if span is None:
        rollout, attempt = shown.rollout, shown.attempt
        rewards = [node.span for node in shown.nodes if node.span.reward is not None]
        return view.template(
            "rollout.html",
            view=view,
            rollout=rollout,
            attempt=attempt,
            rewards=rewards,
            given=_shown(rollout.task.input),
            expected=_shown(rollout.task.expected),
            output=_shown(attempt.output if attempt is not None else None),
        )
    call = span.call
    every = view.query.get("every", "") == "1"
    messages, left_out = conversation(call, every=every) if call is not None else ([], 0)
    first = call.first_token_ns if call is not None else None
    return view.template(
        "span.html",
        view=view,
        span=span,
        call=call,
        marks=marks,
        messages=messages,
        left_out=left_out,
        answers=answers(call) if call is not None else [],
        tokens=usage_of(span),
        seconds=(span.end_ns - span.start_ns) / _NS_PER_S if span.end_ns > span.start_ns else None,
        first_s=(first - call.started_ns) / _NS_PER_S if call is not None and first else None,
        tools=[str(each.get("function", each).get("name", "?")) for each in call.tools]
        if call is not None
        else [],
        sampling=_sampling(call),
        attributes={name: _shown(each) for name, each in span.attributes.items()},
        rewards=[
            node.span.reward
            for node in shown.nodes
            if node.span.reward is not None
            and call is not None
            and node.span.reward.target.call == call.id
        ],
    )


def _sampling(call: Any) -> dict[str, Any]:
    if call is None:
        return {}
    plain = msgspec.structs.asdict(call.sampling)
    extra: Mapping[str, Any] = plain.pop("extra")
    return {name: value for name, value in {**plain, **extra}.items() if value not in (None, ())}


def _shown(value: Any) -> Any:
    """Return a value as a cut text; None for none."""
    if value is None:
        return None
    if isinstance(value, str):
        return cut(value)
    return cut(pretty(value))


def _seconds(attempt: Attempt | None) -> float | None:
    if attempt is None or attempt.ended_at is None:
        return None
    return max(attempt.ended_at - attempt.started_at, 0.0)


def _tokens(spans: Sequence[Span]) -> tuple[int, int]:
    counted = [
        usage_of(span)
        for span in spans
        if span.kind is SpanKind.LLM and not (span.call and span.call.superseded)
    ]
    return sum(each[0] for each in counted), sum(each[1] for each in counted)


async def _siblings(run: ShownRun, rollout: Rollout) -> list[RolloutRow]:
    if not rollout.group_id:
        return []
    # Evaluations at the same step have the same groups: before a prompt phase and after it.
    version = None if rollout.mode == "train" else rollout.resources_version
    wanted = RowFilter(group_id=rollout.group_id, resources_version=version)
    rows = await run.reading.rows(RowQuery(wanted=wanted, sort="reward", limit=_SIBLINGS))
    return rows if len(rows) > 1 else []


def _list_state(text: str) -> dict[str, str]:
    return {name: value for name, value in parse_qsl(text) if name in (*STATE, "after", "before")}


async def _neighbours(view: View, rollout_id: str) -> tuple[str, str]:
    """Return the addresses of the rollouts before and after in the list; empty at its ends."""
    listing = RowList.read(_list_state(view.query.get("from", "")))
    found = await view.run.reading.rows(RowQuery(wanted=RowFilter(id=rollout_id)))
    if not found:
        return "", ""
    place = Cursor.of(found[0], listing.sort)
    before = await listing.page(view.run, place, back=True, limit=1)
    after = await listing.page(view.run, place, limit=1)
    state = {"from": view.query.get("from", "")}
    return (
        view.url("trace", before[0].id, **state) if before else "",
        view.url("trace", after[0].id, **state) if after else "",
    )


def _fragment(html: Any) -> PlainAnswer:
    from starlette.responses import HTMLResponse  # noqa: PLC0415

    return HTMLResponse(str(html))


def _export(view: View, rollout: Rollout) -> PlainAnswer:
    """Return the records of the rollout in the form of ``agl store export``."""
    from starlette.responses import StreamingResponse  # noqa: PLC0415

    async def lines() -> AsyncGenerator[bytes, None]:
        async for line in export_lines(view.run.store, RolloutQuery(ids=(rollout.id,))):
            yield f"{line}\n".encode()

    headers = {"content-disposition": 'attachment; filename="rollout.jsonl"'}
    return StreamingResponse(lines(), media_type="application/jsonl", headers=headers)


def _text(view: View, shown: AttemptTree) -> PlainAnswer:
    """Return a whole text, as text."""
    from starlette.responses import PlainTextResponse  # noqa: PLC0415

    from agl_core.text import replaced  # noqa: PLC0415

    path, span = view.query.get("path", ""), shown.span(view.query.get("span", ""))
    call = span.call if span is not None else None
    tree_: dict[str, Any] = {}
    if call is not None:
        choices = [msgspec.structs.asdict(each) for each in call.choices]
        tree_ = {"messages": call.messages, "choices": choices}
    elif span is None:
        attempt = shown.attempt
        tree_ = {
            "input": shown.rollout.task.input,
            "expected": shown.rollout.task.expected,
            "output": attempt.output if attempt is not None else None,
        }
    text = at_path(tree_, path)
    if text is None and span is not None and path.startswith("attributes."):
        value = span.attributes.get(path.removeprefix("attributes."))
        text = value if isinstance(value, str) else None
    if text is None:
        raise ConfigError(f"There is no text {path!r} in this record")
    headers = {"content-security-policy": "default-src 'none'; sandbox"}
    if view.query.get("save") == "1":
        headers["content-disposition"] = 'attachment; filename="text.txt"'
    return PlainTextResponse(replaced(text).encode(), headers=headers)

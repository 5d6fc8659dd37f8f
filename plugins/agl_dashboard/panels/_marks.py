"""The page of marks: what people said of answers, with exports for training."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Final, Literal, cast

import msgspec
from agl_reading import merge_calls
from agl_records import (
    Mark,
    MarkChange,
    MarkedAnswer,
    MarkFilter,
    Marks,
    MarksForm,
    MarksSummary,
    calls_by_id,
    export_marks_from,
)

from agl_core.errors import ConfigError
from agl_core.types import ModelCall, RolloutQuery
from agl_dashboard._marks import RolloutMarks, SentChange
from agl_dashboard._panel import Page, PlainAnswer, View
from agl_dashboard._rows import rows_file, rows_kind

PAGE: Final = 100
_KEPT: Final = 4
_FORMS: Final[Mapping[str, MarksForm]] = {
    "sft.jsonl": "sft",
    "preferences.jsonl": "preferences",
}
_VERDICTS: Final = {"": "All", "good": "Good", "bad": "Bad", "none": "Neither"}


class MarksPanel:
    """All marks of a run, the last changed first."""

    title = "Marks"
    order = 35
    scope: Literal["all", "run"] = "run"

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], dict[str, ModelCall]] = {}
        """Calls of attempts that change no more, the last ones."""

    async def page(self, view: View) -> Page | PlainAnswer:
        marks = view.sources.marks(view.run)
        if view.rest == "open":
            return await _open(view)
        form = _FORMS.get(view.rest)
        if form is not None:
            return _download(view.rest, (await _exported(view, marks, form))[0])
        wanted = _wanted(view)
        kind = rows_kind(view.rest, "marks")
        if kind is not None:
            found = await _read(marks, wanted)
            return rows_file("marks", kind, map(msgspec.structs.asdict, found))
        return await _list(view, marks, wanted)

    async def change(self, view: View, sent: Mapping[str, Any]) -> PlainAnswer:
        """Change the mark of an answer; returns its new buttons as HTML.

        Raises:
            ConfigError: there is no such answer, or the run has no place for marks.
            StoreError: the marks cannot be written, or the store cannot be read.
        """
        from starlette.responses import HTMLResponse  # noqa: PLC0415

        change = SentChange.parse(sent)
        marks = view.sources.marks(view.run)
        if marks is None:
            raise ConfigError(f"Run {view.run.name!r} has no file for marks: name one with --marks")
        call = await self._call(view, change)
        task = await view.run.store.rollouts(RolloutQuery(ids=(call.rollout_id,), limit=1))
        answer = MarkedAnswer(
            call=call.id,
            choice=change.choice,
            rollout=call.rollout_id,
            attempt=call.attempt_id,
            agent=call.known_as,
            task=task[0].task.id if task else "",
        )
        fields = {name: getattr(change, name) for name in MarkChange.__struct_fields__}
        mark = await asyncio.to_thread(marks.change, answer, MarkChange(**fields))
        key = (call.attempt_id, call.id, change.choice)
        shown = RolloutMarks(write=True, found={key: mark} if mark is not None else {})
        html = view.template("mark.html", view=view, call=call, choice=change.choice, marks=shown)
        return HTMLResponse(str(html))

    async def _call(self, view: View, change: SentChange) -> ModelCall:
        """Return the record of a call that is to be marked.

        Raises:
            ConfigError: the store has no such answer.
        """
        key = (view.run.version.partition(".")[0] + view.run.name, change.attempt)
        calls = self._kept.get(key, {})
        if change.call not in calls:
            spans = await view.run.store.spans([change.rollout], attempt_id=change.attempt)
            calls = calls_by_id(span.call for span in spans if span.call is not None)
            self._kept[key] = calls
            while len(self._kept) > _KEPT:
                del self._kept[next(iter(self._kept))]
        call = calls.get(change.call)
        if call is None or all(each.index != change.choice for each in call.choices):
            raise ConfigError(
                f"Call {change.call!r} of rollout {change.rollout!r} has no answer "
                f"{change.choice}: it may have been deleted"
            )
        return call


def make_panel() -> MarksPanel:
    return MarksPanel()


async def _list(view: View, marks: Marks | None, wanted: MarkFilter) -> Page:
    given = view.query.get("after", "")
    found = await _read(marks, wanted, after=_place(given) if given else None, limit=PAGE + 1)
    form = _FORMS.get(f"{view.query.get('form', '')}.jsonl")
    body = view.template(
        "marks.html",
        view=view,
        marks=marks,
        write=view.sources.writing.write,
        rows=found[:PAGE],
        following=_token(found[PAGE - 1]) if len(found) > PAGE else "",
        agents=await asyncio.to_thread(marks.agents) if marks is not None else [],
        verdicts=_VERDICTS,
        wanted=wanted,
        form=form,
        summary=(await _exported(view, marks, form))[1] if form is not None else None,
    )
    return Page(title="Marks", body=body, scripts=("marks",))


def _wanted(view: View) -> MarkFilter:
    verdict = view.query.get("verdict", "")
    return MarkFilter(
        agent=view.query.get("agent", ""),
        verdict=cast("Any", verdict if verdict in _VERDICTS else ""),
    )


async def _read(
    marks: Marks | None,
    wanted: MarkFilter | None = None,
    *,
    after: Sequence[Any] | None = None,
    limit: int = -1,
) -> list[Mark]:
    if marks is None:
        return []
    return await asyncio.to_thread(marks.read, wanted, after=after, limit=limit)


def _token(mark: Mark) -> str:
    return msgspec.json.encode(mark.place).decode()


def _place(text: str) -> Sequence[Any]:
    try:
        return msgspec.json.decode(text, type=tuple[float, str, str, int])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigError(f"{text[:80]!r} is not a place in the list of marks") from error


async def _exported(view: View, marks: Marks | None, form: MarksForm) -> tuple[bytes, MarksSummary]:
    stream = BytesIO()
    summary = await export_marks_from(view.run.store, await _read(marks), stream, form)
    return stream.getvalue(), summary


def _download(name: str, content: bytes) -> PlainAnswer:
    from starlette.responses import Response  # noqa: PLC0415

    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="application/jsonl", headers=headers)


async def _open(view: View) -> PlainAnswer:
    """Lead to the span of a marked call.

    Raises:
        ConfigError: the store has no such rollout.
    """
    from starlette.responses import RedirectResponse  # noqa: PLC0415

    asked = {name: view.query.get(name, "") for name in ("rollout", "attempt", "call")}
    spans = await view.run.store.spans([asked["rollout"]], attempt_id=asked["attempt"])
    found = [
        span
        for span in await asyncio.to_thread(merge_calls, spans)
        if span.call is not None and span.call.id == asked["call"] and not span.call.superseded
    ]
    span = found[0].id if found else ""
    return RedirectResponse(
        view.url("trace", asked["rollout"], attempt=asked["attempt"], span=span)
    )

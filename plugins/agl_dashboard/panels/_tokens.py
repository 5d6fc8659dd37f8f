"""The tokens of a call, the prefix tree of a group, and the steps whose tokens are kept."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from agl_reading import RolloutRow, RowFilter, RowQuery
from agl_streams import CallTokens, StreamFolder, TokenBytes, TokenFile, read_token_bytes

from agl_core.config import resolve_policies
from agl_core.errors import AglError, ConfigError
from agl_core.interfaces import AgentCall, AttemptRecord
from agl_core.types import Choice, Rollout, RolloutQuery
from agl_dashboard._drawn_tokens import MEASURES, BytesOf, CallPath, drawn, text_pieces
from agl_dashboard._marks import rollout_marks
from agl_dashboard._panel import Page, PlainAnswer, View
from agl_dashboard._prefix_tree import PrefixTree, TreePath, prefix_tree
from agl_dashboard._sources import ShownRun
from agl_dashboard._text import cut

_KEPT: Final = 4
_MOST_CALLS: Final = 200
"""Calls of a group that its tree shows."""
_MOST_RECORDS: Final = 16
"""Rollouts of a group whose records are read where the trainer's streams are not kept."""
_EXCERPT: Final = 40
"""Tokens of a part of a tree that are shown as text."""
_WHY_NOT: Final = {
    "logprob": "the backend returned no log-probabilities",
    "advantage": "no tokens of this call are kept: it was not trained, or train.keep_tokens is too low",
    "entropy": "the engine gives none",
    "mismatch": "the engine gives no log-probabilities before the update",
    "ratio": "not read again after the update (engine.ratio_share), or the engine gives none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What a page of one call shows."""

    rollout: Rollout
    calls: list[AgentCall]
    call_id: str
    call: AgentCall | None
    choice: Choice | None
    path: CallPath | None
    policy: str

    @property
    def at(self) -> int:
        """Index of the call among those of the attempt; -1 if its record is gone."""
        return next((at for at, each in enumerate(self.calls) if each.id == self.call_id), -1)


class TokensPanel:
    """The tokens of one call of a rollout, or the tree of its group."""

    title = "Tokens"
    order = 35
    scope: Literal["all", "run"] = "run"

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], list[AgentCall]] = {}
        """Calls of attempts that change no more, the last ones."""
        self._bytes: dict[tuple[Path, int], TokenBytes] = {}

    async def page(self, view: View) -> Page | PlainAnswer:
        if not view.rest:
            return await _steps(view)
        rollout = await _rollout(view.run, view.rest)
        if view.query.get("view") == "group":
            return await self._group(view, rollout)
        shown = await self._read(view, rollout)
        if view.query.get("part") == "data":
            return await self._data(view, shown)
        measures = shown.path.measures() if shown.path is not None else {}
        index = shown.at
        body = view.template(
            "tokens.html",
            view=view,
            shown=shown,
            rollout=rollout,
            path=shown.path,
            stream=shown.path.stream if shown.path is not None else None,
            names=MEASURES,
            measures=measures,
            reasons=_WHY_NOT,
            by=_measure(view, measures),
            index=index,
            before=shown.calls[index - 1].id if index > 0 else "",
            after=shown.calls[index + 1].id if 0 <= index < len(shown.calls) - 1 else "",
            said=cut(shown.choice.text) if shown.choice is not None else None,
            marks=await rollout_marks(view, rollout.id),
        )
        return Page(title=_title(shown), body=body, scripts=("tokens", "marks"), live=False)

    async def _read(self, view: View, rollout: Rollout) -> _Shown:
        calls = await self._calls(view.run, rollout, view.query.get("attempt", ""))
        wanted = view.query.get("call", "")
        call = next((each for each in calls if each.id == wanted), None)
        if call is None and not wanted and calls:
            call = next((each for each in calls if each.record.prompt_token_ids), calls[0])
        call_id = call.id if call is not None else wanted
        streams = await asyncio.to_thread(_streams, view.run, call_id, rollout)
        if call is None and not streams:
            raise ConfigError(
                f"There is no call {wanted!r} in this attempt"
                if wanted
                else "No model call of this attempt is recorded"
            )
        choices = call.record.choices if call is not None else []
        number = view.query.get("choice", "")
        choice = next((each for each in choices if str(each.index) == number), None)
        choice = choice or next(iter(choices), None)
        record = call.record if call is not None else None
        return _Shown(
            rollout=rollout,
            calls=calls,
            call_id=call_id,
            call=call,
            choice=choice,
            path=CallPath.of(record, choice, streams),
            policy=record.policy if record is not None else streams[0].policy,
        )

    async def _calls(self, run: ShownRun, rollout: Rollout, attempt_id: str) -> list[AgentCall]:
        attempt = next((each for each in rollout.attempts if each.id == attempt_id), None)
        attempt = attempt or rollout.attempt
        if attempt is None:
            return []
        key = (f"{run.version.partition('.')[0]} {run.name}", attempt.id)
        if key in self._records:
            return self._records[key]
        spans = await run.store.spans([rollout.id], attempt_id=attempt.id)
        calls = AttemptRecord(rollout=rollout, attempt=attempt, spans=spans).calls
        if attempt.sealed:
            self._records[key] = calls
            _limit(self._records)
        return calls

    async def _data(self, view: View, shown: _Shown) -> PlainAnswer:
        if shown.path is None:
            raise ConfigError("No tokens of this call are recorded")
        spelled = await asyncio.to_thread(self._spelling, view.run, shown.policy)
        data = await asyncio.to_thread(drawn, shown.path, spelled)
        return _json(data)

    def _spelling(self, run: ShownRun, policy: str) -> BytesOf | None:
        """Return the bytes of a policy's tokens; None if its tokenizer is not there."""
        if run.directory is None or not policy:
            return None
        path = StreamFolder(run.directory).tokenizer(policy, _model_of(run, policy))
        if path is None:
            return None
        try:
            key = (path, path.stat().st_mtime_ns)
            if key not in self._bytes:
                self._bytes[key] = read_token_bytes(path)
                _limit(self._bytes)
        except (OSError, AglError):
            return None
        return self._bytes[key].of

    async def _group(self, view: View, rollout: Rollout) -> Page:
        siblings = await _siblings(view.run, rollout)
        rewards = {each.id: each for each in siblings}
        found = await asyncio.to_thread(_stream_paths, view.run, rollout, set(rewards))
        kept = bool(found)
        if not found:
            found = await self._record_paths(view.run, siblings[:_MOST_RECORDS])
        trees: list[dict[str, Any]] = []
        for policy, paths in sorted(found.items()):
            shown = paths[:_MOST_CALLS]
            tree = await asyncio.to_thread(prefix_tree, shown)
            spelled = await asyncio.to_thread(self._spelling, view.run, policy)
            trees.append(
                {
                    "policy": policy,
                    "tree": tree,
                    "calls": len(shown),
                    "left_out": len(paths) - len(shown),
                    "texts": _texts(tree, spelled),
                }
            )
        body = view.template(
            "token_tree.html",
            view=view,
            rollout=rollout,
            rewards=rewards,
            trees=trees,
            kept=kept,
            back=view.url("trace", rollout.id),
        )
        return Page(title=f"Prefix tree of {rollout.task.id}", body=body, live=False)

    async def _record_paths(
        self, run: ShownRun, siblings: Sequence[RolloutRow]
    ) -> dict[str, list[TreePath]]:
        """Return the calls that may be trained, by policy, from the gateway's records."""
        found: dict[str, list[TreePath]] = {}
        for row in siblings:
            rollout = await _rollout(run, row.id)
            for call in await self._calls(run, rollout, ""):
                record = call.record
                for choice in record.choices if record.trainable else ():
                    ids = record.prompt_token_ids + choice.token_ids[:-1]
                    if record.prompt_token_ids and choice.token_ids:
                        path = TreePath(
                            ids=ids,
                            call_id=call.id,
                            rollout_id=row.id,
                            agent=call.agent,
                            choice=choice.index,
                        )
                        found.setdefault(record.policy, []).append(path)
        return found


def make_panel() -> TokensPanel:
    return TokensPanel()


def _title(shown: _Shown) -> str:
    agent = shown.call.agent if shown.call is not None else ""
    return f"Tokens of {agent or 'a call'} in {shown.rollout.task.id}"


def _measure(view: View, measures: dict[str, Any]) -> str:
    wanted = view.query.get("by", "")
    return wanted if wanted in measures else next(iter(measures), "")


def _limit(kept: dict[Any, Any]) -> None:
    while len(kept) > _KEPT:
        del kept[next(iter(kept))]


async def _rollout(run: ShownRun, rollout_id: str) -> Rollout:
    found = await run.store.rollouts(RolloutQuery(ids=(rollout_id,), limit=1))
    if not found:
        raise ConfigError(f"There is no rollout {rollout_id!r} in this run")
    return found[0]


async def _siblings(run: ShownRun, rollout: Rollout) -> list[RolloutRow]:
    wanted = RowFilter(group_id=rollout.group_id) if rollout.group_id else RowFilter(id=rollout.id)
    return await run.reading.rows(RowQuery(wanted=wanted, sort="reward", limit=_MOST_CALLS))


def _streams(run: ShownRun, call_id: str, rollout: Rollout) -> list[CallTokens]:
    if run.directory is None or not call_id:
        return []
    with suppress(AglError, OSError):
        return StreamFolder(run.directory).call(call_id, step=rollout.step + 1)
    return []


def _model_of(run: ShownRun, policy: str) -> str:
    """Return the directory of a policy's weights, as the configuration states it."""
    if run.config is None:
        return ""
    try:
        policies = resolve_policies(run.config, training=False)
    except ConfigError:
        return ""
    return next((each.model for each in policies if each.name == policy), "")


def _stream_paths(run: ShownRun, rollout: Rollout, ids: set[str]) -> dict[str, list[TreePath]]:
    """Return the trained calls of a group's rollouts, by policy."""
    if run.directory is None:
        return {}
    found: dict[str, list[TreePath]] = {}
    for file in StreamFolder(run.directory).files(rollout.step + 1):
        rollouts = file.header.rollout_ids
        with suppress(AglError, OSError):
            wanted = [at for at, each in enumerate(rollouts) if each in ids]
            paths = [_path_of(file, at) for at in wanted]
            if paths:
                found[file.header.policy] = paths
    return found


def _path_of(file: TokenFile, at: int) -> TreePath:
    tokens = file.choice(at)
    advantages = tokens.columns["advantages"]
    mean = math.fsum(advantages) / len(advantages) if advantages else None
    same = [i for i, each in enumerate(file.header.call_ids) if each == tokens.call_id]
    return TreePath(
        ids=tokens.ids[:-1],
        call_id=tokens.call_id,
        rollout_id=tokens.rollout_id,
        agent=tokens.agent,
        choice=same.index(at),
        advantage=mean,
    )


def _texts(tree: PrefixTree, spelled: BytesOf | None) -> list[str]:
    """Return the beginning of each part as one line of text."""
    texts: list[str] = []
    for part in tree.parts:
        pieces = text_pieces(part.ids[:_EXCERPT], spelled)
        text = "".join(text for text, _ in pieces)
        texts.append(text + ("…" if len(part.ids) > _EXCERPT else ""))
    return texts


async def _steps(view: View) -> Page:
    """Return the page of the steps whose tokens are kept."""
    directory, run = view.run.directory, view.run
    headers: list[Any] = []
    if directory is not None:
        folder = StreamFolder(directory)
        steps = await asyncio.to_thread(folder.steps)
        for step in reversed(steps):
            files = await asyncio.to_thread(folder.files, step)
            headers += [file.header for file in files]
    keeps = run.config.train.keep_tokens if run.config is not None else None
    body = view.template("token_steps.html", view=view, headers=headers, keeps=keeps)
    return Page(title="Tokens", body=body)


def _json(data: Any) -> PlainAnswer:
    from starlette.responses import Response  # noqa: PLC0415

    return Response(json.dumps(data, ensure_ascii=True), media_type="application/json")

"""One held-out task as the two agents handled it, before and after training."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from agl_core.builtin import load_plugins
from agl_core.config import RunConfig
from agl_core.types import Report, Rollout, RolloutQuery, RolloutStatus, Span


def transcripts(config: RunConfig, report: Report) -> list[str]:
    """The first task that was answered wrong before, as it went before and after."""
    return asyncio.run(_transcripts(config, Path(report.directory)))


async def _transcripts(config: RunConfig, directory: Path) -> list[str]:
    stores = load_plugins(config.plugins).registry("stores")
    store = stores.create(config.store.name, config.store, directory)
    await store.open()
    try:
        before = await store.rollouts(_query(config, "val"))
        after = {r.task.id: r for r in await store.rollouts(_query(config, "test"))}
        first = {r.task.id: r for r in before if r.step == 0}
        chosen = next(
            (task for task, r in first.items() if task in after and _differ(r, after[task])), None
        )
        if chosen is None:
            return ["(every answer stayed the same)"]
        pair = [first[chosen], after[chosen]]
        spans = await store.spans([rollout.id for rollout in pair])
        labels = zip(("before", "after"), pair, strict=True)
        return [_text(label, rollout, spans) for label, rollout in labels]
    finally:
        await store.close()


def _query(config: RunConfig, mode: str) -> RolloutQuery:
    return RolloutQuery(
        run_id=config.name,
        mode="val" if mode == "val" else "test",
        statuses=(RolloutStatus.SUCCEEDED,),
        limit=10_000,
    )


def _differ(before: Rollout, after: Rollout) -> bool:
    return before.attempts[-1].output != after.attempts[-1].output


def _text(label: str, rollout: Rollout, spans: Iterable[Span]) -> str:
    lines = [f"{label}: {rollout.task.input['question']}"]
    calls = [s.call for s in spans if s.rollout_id == rollout.id and s.call is not None]
    for call in sorted(calls, key=lambda call: call.started_ns):
        choice = call.choices[0]
        said = choice.text or " ".join(
            f"{tool['function']['name']}({tool['function']['arguments']})"
            for tool in choice.tool_calls
        )
        lines.append(f"  {call.agent:>7}: {said}")
    return "\n".join(lines)

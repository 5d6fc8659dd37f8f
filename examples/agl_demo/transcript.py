"""One held-out task as the two agents handled it, before and after training."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from agl_core.app.run import EVALUATIONS
from agl_core.builtin import load_plugins
from agl_core.config import RunConfig
from agl_core.interfaces import Store
from agl_core.types import Report, Rollout, RolloutQuery, RolloutStatus, Span
from agl_demo import world


def transcripts(config: RunConfig, report: Report) -> list[str]:
    """The first task that was answered wrong before and right after, as it went both times."""
    return asyncio.run(_transcripts(config, Path(report.directory)))


async def _transcripts(config: RunConfig, directory: Path) -> list[str]:
    async with (
        _store(config, directory) as training,
        _store(config, directory / EVALUATIONS) as evaluations,
    ):
        wrong = await _answered(training, RolloutQuery(mode="val"), right=False)
        wrong = {task: rollout for task, rollout in wrong.items() if rollout.step == 0}
        right = await _answered(evaluations, RolloutQuery(mode="test"), right=True)
        task = next((task for task in wrong if task in right), None)
        if task is None:
            return ["(no recorded task was answered wrong before and right after)"]
        return [
            _text("before", wrong[task], await training.spans([wrong[task].id])),
            _text("after", right[task], await evaluations.spans([right[task].id])),
        ]


@asynccontextmanager
async def _store(config: RunConfig, directory: Path) -> AsyncGenerator[Store]:
    stores = load_plugins(config.plugins).registry("stores")
    store = stores.create(config.store.name, config.store, directory)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _answered(store: Store, query: RolloutQuery, *, right: bool) -> dict[str, Rollout]:
    """Each task's first recorded rollout that was answered right, or wrong."""
    found: dict[str, Rollout] = {}
    for rollout in await store.rollouts(query):
        if rollout.status is RolloutStatus.SUCCEEDED:
            task = world.PriceTask(**rollout.task.input)
            if bool(world.reward(task, rollout.attempts[-1].output)) is right:
                found.setdefault(rollout.task.id, rollout)
    return found


def _text(label: str, rollout: Rollout, spans: Iterable[Span]) -> str:
    lines = [f"{label}: {rollout.task.input['question']}"]
    calls = [span.call for span in spans if span.call is not None]
    for call in sorted(calls, key=lambda call: call.started_ns):
        choice = call.choices[0]
        said = choice.text or " ".join(
            f"{tool['function']['name']}({tool['function']['arguments']})"
            for tool in choice.tool_calls
        )
        lines.append(f"  {call.agent:>7}: {said}")
    return "\n".join(lines)

"""The agents' messages on one held-out task, before and after training."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from agl_stores import StoreAddress, locate_store, open_for_reading

from agl_core.app import load_plugins
from agl_core.app.run import EVALUATIONS
from agl_core.errors import ConfigError
from agl_core.interfaces import Store
from agl_core.plugins import PluginManager
from agl_core.types import Mode, Report, Rollout, RolloutQuery, RolloutStatus, Span
from agl_demo import world


def transcripts(report: Report) -> list[str]:
    """Return both transcripts of the first task that was wrong before and right after training."""
    directory = Path(report.directory)
    try:
        # `named`: the store may be opened as configured, since the demo wrote this configuration.
        plugins = load_plugins()
        training, evaluation = (
            replace(locate_store(each, plugins), named=True)
            for each in (directory, directory / EVALUATIONS)
        )
    except ConfigError as error:
        return [f"(no transcript: {error})"]
    return asyncio.run(_transcripts(report.run_id, training, evaluation, plugins))


async def _transcripts(
    run_id: str, training: StoreAddress, evaluation: StoreAddress, plugins: PluginManager
) -> list[str]:
    async with (
        open_for_reading(training, plugins) as before,
        open_for_reading(evaluation, plugins) as after,
    ):
        wrong = await _answered(before, run_id, "val", right=False)
        wrong = {task: rollout for task, rollout in wrong.items() if rollout.step == 0}
        right = await _answered(after, run_id, "test", right=True)
        task = next((task for task in wrong if task in right), None)
        if task is None:
            return ["(no recorded task was answered wrong before and right after)"]
        return [
            _text("before", wrong[task], await before.spans([wrong[task].id])),
            _text("after", right[task], await after.spans([right[task].id])),
        ]


async def _answered(store: Store, run_id: str, mode: Mode, *, right: bool) -> dict[str, Rollout]:
    """Return each task's first recorded rollout whose answer was right, or wrong."""
    found: dict[str, Rollout] = {}
    query = RolloutQuery(run_id=run_id, mode=mode, statuses=(RolloutStatus.SUCCEEDED,))
    for rollout in await store.rollouts(query):
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

"""Whole runs by `agl_core.app.App`: weights and prompts in turn."""

from __future__ import annotations

import asyncio

import agl_core as agl
from agl_core.store import STORE_FILE, SqliteStore
from agl_core.types import PromptTemplate, RolloutQuery
from tests.core.app.conftest import Bench, ask
from tests.trainers.tuning.world import bootstrap

TRAINED = {"algorithm": "reinforce", "steps": 2}
PROMPT = "You answer questions about {item} with one word."


async def agent(task):
    head = {"role": "system", "content": PROMPT.replace("{item}", f"thing{task.id}")}
    with agl.agent_scope("writer"):
        return (await ask([head, {"role": "user", "content": "Well?"}]))["content"]


def start(directory, *phases, **settings):
    """Train; return the report and the bench with its engines."""
    bench = Bench(directory)
    bench.sections = {
        "phases": list(phases),
        "prompts": {"writer": {"agents": ["writer"], "captured": True}},
        "store": {"name": "sqlite"},
        "train": {"tasks_per_step": 2},
    }
    inputs = {
        "agent": agent,
        "tasks": [{"input": number} for number in range(24)],
        "val_tasks": [{"id": f"v{number}", "input": number} for number in range(16)],
    }
    return bench.train(inputs, **settings), bench


def stored(directory):
    async def read():
        store = SqliteStore(directory / "bench" / STORE_FILE)
        await store.open()
        rollouts = await store.rollouts(RolloutQuery(limit=10_000))
        versions = {each.resources_version for each in rollouts}
        resources = {version: await store.resources(version) for version in versions}
        await store.close()
        return rollouts, resources

    return asyncio.run(read())


def test_weights_and_prompts_take_turns(tmp_path):
    phases = [TRAINED, bootstrap(), {"algorithm": "reinforce", "steps": 1}]
    report, bench = start(tmp_path, *phases)
    assert len(report.steps) == 3
    prompt = report.prompts["writer"]
    assert prompt.captured
    assert prompt.before is not None
    assert prompt.before.n == 16
    assert report.rollouts == 3 * 8 + sum(
        each.group_id.startswith("prompts-1-") for each in stored(tmp_path)[0]
    )
    assert len(bench.engine.batches) == 3
    assert all(len(batch.targets) == 8 for batch in bench.engine.batches)
    rollouts, resources = stored(tmp_path)
    last = [each for each in rollouts if each.group_id.startswith("train-2-")]
    assert len(last) == 8
    served = resources[last[0].resources_version].items["writer"]
    assert isinstance(served, PromptTemplate)
    assert served.template == prompt.text
    tuned = [each for each in rollouts if each.group_id.startswith("prompts-1-")]
    assert {resources[each.resources_version].items["trained"].version for each in tuned} == {2}


def test_a_run_that_only_tunes_trains_no_weights(tmp_path):
    report, bench = start(tmp_path, bootstrap())
    assert not report.steps
    assert not bench.engine.batches
    assert report.prompts["writer"].after is not None


def test_the_journal_is_in_the_runs_directory(tmp_path):
    start(tmp_path, bootstrap())
    assert (tmp_path / "bench" / "prompts" / "0-bootstrap.jsonl").is_file()


def test_a_run_that_has_ended_runs_nothing_when_it_is_resumed(tmp_path):
    first, _ = start(tmp_path, TRAINED, bootstrap())
    before = len(stored(tmp_path)[0])
    again, _ = start(tmp_path, TRAINED, bootstrap(), train__resume=True)
    assert len(stored(tmp_path)[0]) == before
    assert again.prompts == first.prompts
    assert again.lost.get("rollouts_abandoned", 0) == 0

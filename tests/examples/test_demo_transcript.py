"""The task that `agl demo` shows, as the stores of a run and its evaluation keep it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agl_demo.command import demo_config
from agl_demo.transcript import transcripts

from agl_core.app.run import EVALUATIONS
from agl_core.config import RunConfig
from agl_core.config.loader import save_config
from agl_core.store._sqlite import SqliteStore
from agl_core.types import (
    AttemptStatus,
    Choice,
    Mode,
    ModelCall,
    Report,
    Rollout,
    Span,
    SpanKind,
    Task,
)

LAMP = Task(
    id="lamp",
    input={"question": "The lamp?", "item": "red lamp", "price": 34, "unit": "euros"},
)
RIGHT, WRONG = "The red lamp is 34 euros.", "The red lamp is 43 euros."


async def answered(store: SqliteStore, run_id: str, mode: Mode, text: str, *, step: int) -> None:
    """One rollout whose writer said `text`."""
    name = f"{run_id}-{mode}-{step}"
    await store.enqueue([Rollout(id=name, task=LAMP, run_id=run_id, mode=mode, step=step)])
    (claim,) = await store.claim("worker", timeout_s=1.0)
    owner = {"rollout_id": name, "attempt_id": claim.attempt.id}
    call = ModelCall(id=f"call-{name}", agent="writer", choices=[Choice(text=text)], **owner)
    span = Span(id=f"span-{name}", kind=SpanKind.LLM, name="chat", call=call, **owner)
    await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED, spans=[span], output=text)


def play(config: RunConfig, directory: Path, answers: list[tuple[str, Mode, str, int]]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    save_config(config, directory)

    async def write() -> None:
        store = SqliteStore(config.store.options.get("path") or directory / "store.db")
        await store.open()
        for run_id, mode, text, step in answers:
            await answered(store, run_id, mode, text, step=step)
        await store.close()

    asyncio.run(write())


def report_of(config: RunConfig, directory: Path) -> Report:
    return Report(
        run_id=config.name,
        directory=str(directory),
        steps=[],
        evaluations=[],
        policies={},
        calls=0,
        wall_s=0.0,
    )


def test_both_answers_are_found_where_the_store_has_a_place_of_its_own(tmp_path: Path) -> None:
    """The file is shared with another run, and the evaluation's records lie elsewhere."""
    config = demo_config((f"store.path={tmp_path / 'shared.db'}",))
    apart = config.model_copy(update={"store": demo_config().store})
    play(
        config,
        tmp_path / "run",
        [
            ("another", "val", "Nobody knows.", 0),
            (config.name, "val", WRONG, 0),
            (config.name, "val", RIGHT, 20),
        ],
    )
    play(apart, tmp_path / "run" / EVALUATIONS, [(config.name, "test", RIGHT, 20)])
    assert transcripts(report_of(config, tmp_path / "run")) == [
        f"before: The lamp?\n   writer: {WRONG}",
        f"after: The lamp?\n   writer: {RIGHT}",
    ]


def test_a_task_that_was_right_before_is_not_shown(tmp_path: Path) -> None:
    config = demo_config()
    play(
        config,
        tmp_path,
        [(config.name, "val", RIGHT, 0), (config.name, "val", WRONG, 20)],
    )
    play(config, tmp_path / EVALUATIONS, [(config.name, "test", RIGHT, 20)])
    (shown,) = transcripts(report_of(config, tmp_path))
    assert "no recorded task" in shown


def test_records_in_memory_are_said_to_be_gone(tmp_path: Path) -> None:
    config = demo_config(("store.name=memory",))
    save_config(config, tmp_path)
    (shown,) = transcripts(report_of(config, tmp_path))
    assert "kept its records in memory" in shown

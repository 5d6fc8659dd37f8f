"""Runs written into a store for the tests of ``agl trace``."""

import asyncio

import msgspec
from agl_testing.attempts import CallOptions, ScriptedAttempt

from agl_core.config import RunConfig
from agl_core.config.loader import save_config
from agl_core.store._sqlite import SqliteStore
from agl_core.types import AttemptStatus, Rollout, Span, SpanKind, Task


async def in_thread(agl, *arguments):
    """The command runs a loop of its own."""
    return await asyncio.to_thread(agl, *arguments)


def scripted():
    """A planner, its tool, and a writer whose call the gateway saw too."""
    script = ScriptedAttempt()
    planner = script.agent("planner")
    script.call("planner", [1, 2, 3], [4], options=CallOptions(parent=planner.id))
    script.spans.append(
        Span(
            id="sp_tool",
            rollout_id=script.rollout.id,
            attempt_id=script.attempt.id,
            kind=SpanKind.TOOL,
            name="lookup",
            parent_id=planner.id,
            sequence=9,
            start_ns=9,
            attributes={"gen_ai.tool.call.arguments": '{"price": 3}'},
        )
    )
    call = script.call("writer", [1, 2], [5, 6])
    script.reward(0.5)
    script.reward(0.25, channel="style", call=call)
    script.reward(1.0, agent="planner")
    return script


async def store_run(
    directory, script, *, count=1, first=0, consumed=False, failure=None, config=None
):
    """Write the attempt into a run's store as a run would; returns the rollout ids."""
    config = config or RunConfig()
    directory.mkdir(parents=True, exist_ok=True)
    save_config(config, directory)
    store = SqliteStore(
        directory / "store.db", retention=config.store.options.get("retention", "keep")
    )
    await store.open()
    ids = []
    for number in range(first, first + count):
        rollout = Rollout(id=f"ro_{number}", task=Task(id=f"task-{number}"), run_id="run", step=4)
        await store.enqueue([rollout])
        (claim,) = await store.claim("worker")
        spans = [
            msgspec.structs.replace(
                span,
                id=f"{span.id}_{number}",
                parent_id=f"{span.parent_id}_{number}" if span.parent_id else None,
                rollout_id=rollout.id,
                attempt_id=claim.attempt.id,
            )
            for span in script.spans
        ]
        await store.add_spans([span for span in spans if span.call is not None])
        await store.finish(
            claim.attempt.id,
            status=AttemptStatus.FAILED if failure else AttemptStatus.SUCCEEDED,
            spans=[span for span in spans if span.call is None],
            failure=failure,
        )
        ids.append(rollout.id)
    if consumed:
        await store.consume(ids)
    await store.close()
    return ids

"""``agl store show``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click
from agl_reading import agent_totals, merge_calls

from agl_core.cli.group import CliState, debug_option, json_option, plugin_option
from agl_core.cli.output import console
from agl_core.errors import ConfigError
from agl_core.types import Attempt, Rollout, RolloutQuery, Span
from agl_records._fields import all_fields
from agl_records.commands._output import write_records
from agl_records.commands._printing import printable
from agl_records.commands._selection import located, reading, store_argument
from agl_records.commands._tree import named, reward_text, token_counts

_LONGEST = 2000
"""Most characters shown of a value."""


@click.command()
@store_argument
@click.argument("rollout_id", metavar="ID")
@plugin_option
@json_option
@debug_option
@click.pass_obj
def command(state: CliState, *, target: str, rollout_id: str, json_file: str | None) -> None:
    """Show the rollout ID: attempts, failures, rewards, and what its spans add up to.

    agl trace shows the spans themselves; --json has everything, tokens included.
    """
    address = located(state, target)

    async def read() -> tuple[Rollout, list[Span]]:
        async with reading(state, address, for_people=True) as store:
            found = await store.rollouts(RolloutQuery(ids=(rollout_id,)))
            if not found:
                raise ConfigError(f"There is no rollout {rollout_id!r} in {target!r}")
            return found[0], await store.spans([rollout_id])

    rollout, spans = asyncio.run(read())
    if json_file is not None:
        write_records({"rollout": rollout, "spans": [*map(all_fields, spans)]}, json_file)
        return
    output = console()
    for line in (*_of_rollout(rollout), *_of_attempts(rollout, spans)):
        output.print(line, markup=False, soft_wrap=True)


def _of_rollout(rollout: Rollout) -> Iterator[str]:
    yield f"rollout   {rollout.id}, {rollout.status.value}{', consumed' if rollout.consumed else ''}"
    yield f"run       {rollout.run_id}, {rollout.mode}, step {rollout.step}"
    if rollout.group_id:
        yield f"group     {rollout.group_id}"
    yield f"created   {_moment(rollout.created_at)}"
    yield f"resources version {rollout.resources_version}, seed {rollout.seed}"
    limits = rollout.limits
    yield (
        f"limits    {limits.timeout_s:g} s, lease {limits.lease_s:g} s, "
        f"{limits.max_attempts} attempts"
    )
    yield f"task      {rollout.task.id}"
    yield f"input     {_value(rollout.task.input)}"
    if rollout.task.expected is not None:
        yield f"expected  {_value(rollout.task.expected)}"


def _of_attempts(rollout: Rollout, spans: Sequence[Span]) -> Iterator[str]:
    for attempt in rollout.attempts:
        own = merge_calls(span for span in spans if span.attempt_id == attempt.id)
        yield ""
        yield from _of_attempt(attempt)
        if rollout.consumed and not own:
            yield "  spans deleted since (store.retention, or agl store gc)"
        yield from (f"  {line}" for line in _of_spans(own))


def _of_attempt(attempt: Attempt) -> Iterator[str]:
    took = f", {attempt.ended_at - attempt.started_at:.3f} s" if attempt.ended_at else ""
    yield (
        f"attempt {attempt.fence}  {attempt.id}, {attempt.status.value}, by {attempt.worker}, "
        f"from {_moment(attempt.started_at)}{took}"
    )
    if attempt.failure is not None:
        failure = attempt.failure
        kind = f"{failure.kind.value} ({failure.type})" if failure.type else failure.kind.value
        yield f"  failure {kind}: {failure.message}"
        yield from (f"    {line}" for line in failure.traceback.rstrip().splitlines())
    if attempt.output is not None:
        yield f"  output {_value(attempt.output)}"


def _of_spans(spans: Sequence[Span]) -> Iterator[str]:
    for span in spans:
        if span.reward is not None:
            yield f"reward {reward_text(span.reward)}"
            yield from (f"  {line}" for line in _value(printable(span.reward.why)).splitlines())
    for name, totals in agent_totals(spans).items():
        tokens = f", {token_counts(totals.prompt_tokens, totals.sampled_tokens)}"
        yield f"agent {named(name, totals.alias)}: {totals.calls} calls{tokens if totals.calls else ''}"
    kinds = Counter(span.kind.value for span in spans)
    if kinds:
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        yield f"spans: {counted}"
    for span in spans:
        if span.status == "error":
            yield f"error in {span.kind.value} {span.name}: {_value(span.error)}"


def _value(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).astimezone().isoformat(timespec="seconds")

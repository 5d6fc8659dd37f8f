"""What a rollout's spans add up to: its row, its sums, and the text to search in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from msgspec.structs import replace

from agl_core.text import replaced
from agl_core.types import RESERVED_PREFIX, ModelCall, Rollout, RolloutStatus, Span, SpanKind
from agl_reading._latency import latency_name
from agl_reading._rows import RolloutRow, Sum, SumKind
from agl_reading._spans import agent_totals, merge_calls, rewards_of, usage_of

MOST_TEXT: Final = 200_000
"""Characters of a rollout that can be searched; what agents said last is kept."""
_MOST_OF_A_TEXT: Final = 50_000
_NS_PER_S: Final = 1e9


@dataclass(slots=True)
class Summary:
    """A rollout's row with what its spans add to the sums."""

    row: RolloutRow
    sums: dict[tuple[SumKind, str], Sum] = field(default_factory=dict[tuple[SumKind, str], Sum])
    """By kind and name."""
    text: str = ""
    """Everything that was said, once each; see `indexed` for what is found in it."""


def plain_row(rollout: Rollout) -> RolloutRow:
    """Return a rollout's row without its spans."""
    attempt = rollout.attempt
    ended = attempt.ended_at if attempt is not None else None
    failed = attempt.failure if attempt is not None else None
    return RolloutRow(
        id=rollout.id,
        run_id=rollout.run_id,
        mode=rollout.mode,
        task=rollout.task.id,
        group_id=rollout.group_id,
        step=rollout.step,
        status=rollout.status,
        resources_version=rollout.resources_version,
        cause=failed.kind.value if failed is not None and _failed(rollout) else "",
        attempts=len(rollout.attempts),
        created_at=rollout.created_at,
        seconds=max(ended - attempt.started_at, 0.0) if attempt is not None and ended else 0.0,
    )


def countable(rollout: Rollout) -> bool:
    """Return whether no record of the rollout follows."""
    attempt = rollout.attempt
    return rollout.status.final and (attempt is None or attempt.sealed)


def summarise(
    rollout: Rollout, spans: Iterable[Span], *, weights: Mapping[str, float] | None = None
) -> Summary:
    """Sum up an ended rollout.

    Args:
        rollout: The rollout.
        spans: Its spans; those of its last attempt count.
        weights: Weights of reward channels; 1 for the others.
    """
    last = rollout.attempt
    own = merge_calls(span for span in spans if last is not None and span.attempt_id == last.id)
    totals = agent_totals(own)
    channels = rewards_of(own)
    used = [
        (span.agent or "", usage_of(span))
        for span in own
        if span.kind is SpanKind.LLM and not (span.call is not None and span.call.superseded)
    ]
    weighted = [value * (weights or {}).get(name, 1.0) for name, value in channels.items()]
    row = replace(
        plain_row(rollout),
        counted=True,
        reward=sum(weighted) if weighted else None,
        channels=channels,
        calls=sum(each.calls for each in totals.values()),
        prompt_tokens=sum(prompt for _, (prompt, _) in used),
        sampled_tokens=sum(sampled for _, (_, sampled) in used),
        agents=tuple(
            sorted(
                name
                for name, each in totals.items()
                if each.calls or not name.startswith(RESERVED_PREFIX)
            )
        ),
    )
    summary = Summary(row, text=searchable(rollout, own))
    add = _adder(summary)
    add("rollouts", row.status.value, 1)
    add("seconds", row.status.value, row.seconds)
    if row.cause:
        add("cause", row.cause, 1)
    for name, value in channels.items():
        add("channel", name, value)
    for agent, each in totals.items():
        if each.reward is not None:
            add("agent", agent, each.reward)
    for agent, (prompt, sampled) in used:
        add("calls", agent, 1)
        add("prompt_tokens", agent, prompt)
        add("sampled_tokens", agent, sampled)
    _add_calls(own, add)
    for (caller, called), count in _edges(own).items():
        add("edge", f"{caller}\n{called}", count)
    return summary


def _failed(rollout: Rollout) -> bool:
    return rollout.status in (RolloutStatus.FAILED, RolloutStatus.CANCELLED)


def _adder(summary: Summary) -> Any:
    row = summary.row

    def add(kind: SumKind, name: str, total: float) -> None:
        shown = replaced(name)
        known = summary.sums.get((kind, shown))
        if known is not None:
            summary.sums[kind, shown] = replace(known, n=known.n + 1, total=known.total + total)
        else:
            summary.sums[kind, shown] = Sum(
                mode=row.mode, step=row.step, kind=kind, name=shown, n=1, total=total
            )

    return add


def _add_calls(spans: Sequence[Span], add: Any) -> None:
    for span in spans:
        agent = span.agent or ""
        if span.kind is SpanKind.TOOL:
            add("tools", agent, 1)
        call = span.call
        if call is None or call.superseded:
            continue
        if call.ended_ns > call.started_ns:
            seconds = (call.ended_ns - call.started_ns) / _NS_PER_S
            add("call_seconds", agent, seconds)
            add("latency", latency_name(call.policy, agent, seconds), seconds)
        if any(choice.finish_reason == "length" for choice in call.choices):
            add("cut", agent, 1)
        if call.error:
            add("errors", agent, 1)


def _edges(spans: Sequence[Span]) -> dict[tuple[str, str], int]:
    """Count from which agent control came to each run of an agent; empty: from the program."""
    by_id = {span.id: span for span in spans}
    runs: dict[tuple[str, str | None], Span] = {}
    for span in sorted(spans, key=lambda span: span.start_ns):
        if span.agent and not span.agent.startswith(RESERVED_PREFIX):
            runs.setdefault((span.agent, span.agent_run_id), span)
    counted: dict[tuple[str, str], int] = {}
    before: Span | None = None
    for (agent, _), span in runs.items():
        around = caller = _caller(span, by_id)
        if not around:
            ended = before is not None and before.end_ns <= span.start_ns
            caller = (before.agent or "") if before is not None and ended else ""
            before = span
        counted[(caller, agent)] = counted.get((caller, agent), 0) + 1
    return counted


def _caller(span: Span, by_id: Mapping[str, Span]) -> str:
    """Return the nearest enclosing agent of another name; empty without one."""
    seen = {span.id}
    parent = by_id.get(span.parent_id or "")
    while parent is not None and parent.id not in seen:
        if parent.agent and parent.agent != span.agent:
            return parent.agent
        seen.add(parent.id)
        parent = by_id.get(parent.parent_id or "")
    return ""


def searchable(rollout: Rollout, spans: Sequence[Span]) -> str:
    """Return the text of a rollout, newest first and each text once, of at most `MOST_TEXT`."""
    found: dict[str, None] = {}
    size = 0
    for text in _said(rollout, spans):
        cut = text[:_MOST_OF_A_TEXT]
        if cut and cut not in found:
            found[cut] = None
            size += len(cut)
        if size >= MOST_TEXT:
            break
    return replaced("\n".join(found))


def _said(rollout: Rollout, spans: Sequence[Span]) -> Iterable[str]:
    attempt = rollout.attempt
    yield rollout.task.id
    yield from strings(rollout.task.input)
    yield from strings(rollout.task.expected)
    if attempt is not None:
        yield from strings(attempt.output)
        if attempt.failure is not None:
            yield attempt.failure.message
    for span in reversed(spans):
        yield span.error
        if span.reward is not None:
            yield span.reward.why
        if span.call is not None:
            yield from _of_call(span.call)
        yield from strings(span.attributes)


def _of_call(call: ModelCall) -> Iterable[str]:
    yield call.error
    for choice in call.choices:
        yield from (choice.text, choice.reasoning, choice.refusal, choice.audio)
        yield from strings(choice.tool_calls)
    for message in reversed(call.messages):
        yield from strings(message.get("content"))
        yield from strings(message.get("tool_calls"))


def strings(value: Any) -> Iterable[str]:
    """Yield the texts in a JSON value, without the names of fields and without data of images."""
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, str):
            if not each.startswith("data:"):
                yield each
        elif isinstance(each, Mapping):
            stack += reversed([*cast("Mapping[Any, Any]", each).values()])
        elif isinstance(each, (list, tuple)):
            stack += reversed([*cast("Sequence[Any]", each)])

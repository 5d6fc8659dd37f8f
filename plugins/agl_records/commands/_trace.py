"""``agl trace``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from agl_reading import agent_totals, merge_calls, rewards_of
from agl_stores import rollout_pages

from agl_core.adapters import aliases_of
from agl_core.cli.group import CliState, debug_option, json_option, plugin_option
from agl_core.cli.output import console
from agl_core.errors import ConfigError
from agl_core.interfaces import Store
from agl_core.types import Attempt, Rollout, RolloutQuery, Span, agent_matches
from agl_records._fields import all_fields
from agl_records.commands._messages import Detail
from agl_records.commands._output import write_records
from agl_records.commands._printing import Said, excerpt, printable
from agl_records.commands._selection import located, reading, store_argument
from agl_records.commands._tree import add_spans, named, token_counts

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

_BATCH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Rollouts and spans to show."""

    rollout: str | None
    agents: tuple[str, ...]
    call: str | None
    failed: bool
    limit: int

    @property
    def some_spans(self) -> bool:
        """Whether spans are selected, not only rollouts."""
        return bool(self.agents) or self.call is not None

    def shows(self, rollout: Rollout) -> bool:
        asked = self.rollout is not None or self.call is not None or not self.failed
        return asked or any(attempt.failure for attempt in rollout.attempts)

    def spans(self, spans: Sequence[Span], aliases: Mapping[str, Mapping[str, str]]) -> list[Span]:
        """Return the spans of the selected call, or agents by name or alias; else all.

        Args:
            spans: Of one rollout.
            aliases: Attempt id to agent to alias.
        """
        if self.call is not None:
            return [span for span in spans if self.call in (span.call_id, _rewarded_call(span))]
        if not self.agents:
            return list(spans)
        return [
            span
            for span in spans
            if span.agent and self._means({span.agent, _known_as(span, aliases)})
        ]

    def _means(self, names: Iterable[str]) -> bool:
        return any(agent_matches(pattern, name) for pattern in self.agents for name in names)


def _rewarded_call(span: Span) -> str | None:
    return span.reward.target.call if span.reward is not None else None


@click.command()
@store_argument
@click.option("--rollout", metavar="ID", help="Show this rollout only.")
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="NAME",
    help="Show only what this agent did: a name, an alias or a glob of them; may be repeated.",
)
@click.option("--call", metavar="ID", help="Show this model call only, with what was said in it.")
@click.option("--failed", is_flag=True, help="Show only rollouts with an attempt that failed.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Show the newest rollouts, so many; 0 shows all.",
)
@click.option(
    "--messages",
    is_flag=True,
    help="Show also what was said: prompts, answers, tool results, reasons, errors.",
)
@click.option("--thinking", is_flag=True, help="Show also thinking; implies --messages.")
@plugin_option
@json_option
@debug_option
@click.pass_obj
def command(  # noqa: PLR0913 - one per option
    state: CliState,
    *,
    target: str,
    rollout: str | None,
    agents: tuple[str, ...],
    call: str | None,
    failed: bool,
    limit: int,
    messages: bool,
    thinking: bool,
    json_file: str | None,
) -> None:
    """Show what happened inside a run's rollouts: spans by agent, rewards, tokens.

    STORE is a run's directory, a configuration, a database file or an http:// address. The run
    may be active: reading changes nothing.
    """
    wanted = Wanted(rollout=rollout, agents=agents, call=call, failed=failed, limit=limit)
    detail = Detail(messages=messages or thinking or call is not None, thinking=thinking)
    address = located(state, target)

    async def read() -> tuple[list[tuple[Rollout, list[Span]]], int]:
        async with reading(state, address, for_people=True) as store:
            return await find(store, wanted)

    found, total = asyncio.run(read())
    if json_file is not None:
        records = [{"rollout": entry, "spans": [*map(all_fields, spans)]} for entry, spans in found]
        write_records(records, json_file)
        return
    output = console()
    for entry, spans in found:
        output.print(rollout_tree(entry, spans, detail))
    if len(found) < total:
        output.print(f"{len(found)} of {total} rollouts; --limit 0 shows all")
    elif not found:
        output.print("no rollouts to show")


async def find(store: Store, wanted: Wanted) -> tuple[list[tuple[Rollout, list[Span]]], int]:
    """Return the newest selected rollouts, oldest first, and the number of candidates.

    Raises:
        ConfigError: the selected rollout or call does not exist, or no rollout has the agents.
    """
    query = RolloutQuery(ids=(wanted.rollout,)) if wanted.rollout is not None else None
    ids = [r.id async for page in rollout_pages(store, query) for r in page if wanted.shows(r)]
    if wanted.rollout is not None and not ids:
        raise ConfigError(f"There is no rollout {wanted.rollout!r} in this run")
    found: list[tuple[Rollout, list[Span]]] = []
    seen: set[str] = set()
    batch = min(_BATCH, wanted.limit or _BATCH)
    for end in range(len(ids), 0, -batch):
        for rollout, spans in reversed(await _load(store, ids[max(0, end - batch) : end])):
            aliases = _aliases(spans)
            seen |= {_known_as(span, aliases) for span in spans if span.agent}
            seen |= {span.agent for span in spans if span.agent}
            own = wanted.spans(spans, aliases)
            if own or not wanted.some_spans:
                found.append((rollout, own))
        if found and (wanted.call is not None or len(found) >= wanted.limit > 0):
            break
    if wanted.call is not None and not found:
        where = f"rollout {wanted.rollout!r}" if wanted.rollout is not None else "this run"
        raise ConfigError(f"There is no model call {wanted.call!r} in {where}")
    if wanted.agents and ids and not found:
        raise ConfigError(
            f"No rollout has agent {list(wanted.agents)}; agents seen: {sorted(seen)}"
        )
    newest = found[: wanted.limit or None]
    return newest[::-1], len(ids) if not wanted.some_spans else len(newest)


def _aliases(spans: Iterable[Span]) -> dict[str, dict[str, str]]:
    """Return agent to alias by attempt id."""
    by_attempt: dict[str, list[Span]] = {}
    for span in spans:
        by_attempt.setdefault(span.attempt_id, []).append(span)
    return {attempt_id: aliases_of(own) for attempt_id, own in by_attempt.items()}


def _known_as(span: Span, aliases: Mapping[str, Mapping[str, str]]) -> str:
    agent = span.agent or ""
    return aliases.get(span.attempt_id, {}).get(agent, agent)


async def _load(store: Store, ids: Sequence[str]) -> list[tuple[Rollout, list[Span]]]:
    by_rollout: dict[str, list[Span]] = {}
    for span in await store.spans(ids):
        by_rollout.setdefault(span.rollout_id, []).append(span)
    rollouts = await store.rollouts(RolloutQuery(ids=tuple(ids), limit=len(ids)))
    return [(rollout, by_rollout.get(rollout.id, [])) for rollout in rollouts]


def rollout_tree(rollout: Rollout, spans: Sequence[Span], detail: Detail) -> Tree:
    """Return one rollout with its attempts."""
    from rich.text import Text  # noqa: PLC0415
    from rich.tree import Tree  # noqa: PLC0415

    head = Text()
    head.append(f"rollout {rollout.id} ", style="bold")
    head.append(f"task {printable(rollout.task.id)}, {rollout.mode}, step {rollout.step}, ")
    head.append(rollout.status.value, style="green" if rollout.status == "succeeded" else "red")
    tree = Tree(head)
    for attempt in rollout.attempts:
        own = merge_calls(span for span in spans if span.attempt_id == attempt.id)
        branch = tree.add(_attempt_label(attempt, own))
        if detail.messages and attempt.failure is not None:
            failure = attempt.failure
            branch.add(Said("failure", failure.traceback or failure.message, style="red"))
        if rollout.consumed and not own:
            branch.add(
                Text("spans dropped after training (store.retention, or agl store gc)", style="dim")
            )
        add_spans(branch, own, detail)
        for name, totals in agent_totals(own).items():
            line = f"agent {named(name, totals.alias)}: {totals.calls} calls"
            if totals.calls:
                line += f", {token_counts(totals.prompt_tokens, totals.sampled_tokens)}"
            if totals.reward is not None:
                line += f", reward {totals.reward:+.3f}"
            branch.add(Text(line, style="dim"))
    return tree


def _attempt_label(attempt: Attempt, spans: Sequence[Span]) -> Text:
    from rich.text import Text  # noqa: PLC0415

    label = Text(f"attempt {attempt.fence} {attempt.status.value}")
    for channel, value in rewards_of(spans).items():
        label.append(f", {printable(channel)} {value:+.3f}", style="bold")
    if attempt.failure is not None:
        failure = attempt.failure
        label.append(f", {failure.kind.value}: {excerpt(failure.message)}", style="red")
    return label

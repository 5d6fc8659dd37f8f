"""``agl trace``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agl_core.cli.group import CliState
from agl_core.cli.options import debug_option
from agl_core.cli.output import console
from agl_core.cli.tree import add_spans, agent_totals, excerpt, merge_calls, token_counts
from agl_core.errors import ConfigError
from agl_core.types import Attempt, Rollout, RolloutQuery, Span

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from agl_core.config import RunConfig
    from agl_core.interfaces import Store
    from agl_core.plugins import PluginManager

_PAGE = 1000


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--rollout", metavar="ID", help="Show this rollout only.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Show the newest rollouts, so many; 0 shows all.",
)
@debug_option
@click.pass_obj
def command(state: CliState, *, run_dir: Path, rollout: str | None, limit: int) -> None:
    """Show what happened inside a run's rollouts: spans by agent, rewards, tokens."""
    config = _run_config(run_dir)
    plugins = state.plugins(config.plugins)
    found, total = asyncio.run(_read(plugins, config, run_dir, rollout=rollout, limit=limit))
    target = console()
    for entry, spans in found:
        target.print(rollout_tree(entry, spans))
    if len(found) < total:
        target.print(f"{len(found)} of {total} rollouts; --limit 0 shows all")


def _run_config(run_dir: Path) -> RunConfig:
    """The run's own configuration.

    Raises:
        ConfigError: the directory holds no run, or one whose store is gone.
    """
    from agl_core.config.loader import RESOLVED, load_config  # noqa: PLC0415

    if not (run_dir / RESOLVED).is_file():
        raise ConfigError(
            f"{str(run_dir)!r} is no run's directory: it has no {RESOLVED}. Runs lie in "
            f"<directory>/<name> of their configuration, by default agl_runs/run"
        )
    config = load_config(run_dir / RESOLVED)
    if config.store.name == "memory":
        raise ConfigError(f"Run {str(run_dir)!r} kept its records in memory: they are gone")
    file = Path(config.store.path or run_dir / "store.db")
    if config.store.name == "sqlite" and not file.is_file():
        raise ConfigError(f"Run {str(run_dir)!r} has no store: there is no file {str(file)!r}")
    return config


async def _read(
    plugins: PluginManager, config: RunConfig, run_dir: Path, *, rollout: str | None, limit: int
) -> tuple[list[tuple[Rollout, list[Span]]], int]:
    """The chosen rollouts with their spans, and how many there are in all."""
    store = plugins.registry("stores").create(config.store.name, config.store, run_dir)
    await store.open()
    try:
        chosen, total = await _choose(store, rollout, limit)
        spans = await store.spans([entry.id for entry in chosen])
    finally:
        await store.close()
    by_rollout: dict[str, list[Span]] = {}
    for span in spans:
        by_rollout.setdefault(span.rollout_id, []).append(span)
    return [(entry, by_rollout.get(entry.id, [])) for entry in chosen], total


async def _choose(store: Store, rollout: str | None, limit: int) -> tuple[list[Rollout], int]:
    if rollout is not None:
        found = await store.rollouts(RolloutQuery(ids=(rollout,)))
        if not found:
            raise ConfigError(f"There is no rollout {rollout!r} in this run")
        return found, len(found)
    newest: deque[Rollout] = deque(maxlen=limit or None)
    total, cursor = 0, None
    while True:
        page = await store.rollouts(RolloutQuery(after_id=cursor, limit=_PAGE))
        newest.extend(page)
        total += len(page)
        if len(page) < _PAGE:
            return list(newest), total
        cursor = page[-1].id


def rollout_tree(rollout: Rollout, spans: Sequence[Span]) -> Tree:
    """One rollout with its attempts."""
    from rich.text import Text  # noqa: PLC0415
    from rich.tree import Tree  # noqa: PLC0415

    head = Text()
    head.append(f"rollout {rollout.id} ", style="bold")
    head.append(f"task {rollout.task.id}, {rollout.mode}, step {rollout.step}, ")
    head.append(rollout.status.value, style="green" if rollout.status == "succeeded" else "red")
    tree = Tree(head)
    for attempt in rollout.attempts:
        own = merge_calls(span for span in spans if span.attempt_id == attempt.id)
        branch = tree.add(_attempt_label(attempt, own))
        if rollout.consumed and not own:
            branch.add(Text("spans dropped after training (store.retention)", style="dim"))
        add_spans(branch, own)
        for name, totals in agent_totals(own).items():
            line = f"agent {name}: {totals.calls} calls"
            if totals.calls:
                line += f", {token_counts(totals.prompt_tokens, totals.sampled_tokens)}"
            if totals.reward is not None:
                line += f", reward {totals.reward:+.3f}"
            branch.add(Text(line, style="dim"))
    return tree


def _attempt_label(attempt: Attempt, spans: Sequence[Span]) -> Text:
    from rich.text import Text  # noqa: PLC0415

    label = Text(f"attempt {attempt.fence} {attempt.status.value}")
    channels: dict[str, float] = {}
    for span in spans:
        if span.reward is not None:
            reward = span.reward
            channels[reward.channel] = channels.get(reward.channel, 0.0) + reward.value
    for channel, value in sorted(channels.items()):
        label.append(f", {channel} {value:+.3f}", style="bold")
    if attempt.failure is not None:
        failure = attempt.failure
        label.append(f", {failure.kind.value}: {excerpt(failure.message)}", style="red")
    return label

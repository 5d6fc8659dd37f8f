"""Stored runs as demonstrations: the exact recorded tokens of chosen agents and attempts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from agl_stores import (
    StoreAddress,
    attempt_records,
    locate_store,
    open_for_reading,
    rollout_pages,
)

from agl_core.adapters import AgentSelector
from agl_core.app import load_plugins
from agl_core.config import resolve_policies
from agl_core.errors import CaptureError, ConfigError, RewardError
from agl_core.interfaces import AdaptedAttempt, Adapter, AgentCall, AttemptRecord, Filter
from agl_core.plugins import PluginManager
from agl_core.types import (
    AgentReturn,
    AttemptStatus,
    Losses,
    Policy,
    Trajectory,
    TrajectoryGroup,
)
from agl_imitation._conversations import Example
from agl_imitation._filtering import cleaned, unclean_agents

__all__ = ["Selection", "read_run"]

_PAGE: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which attempts of a stored run are imitated."""

    agents: tuple[str, ...]
    """Names or globs."""
    min_reward: float | None = None
    """Least return of an agent in an attempt."""
    keep: int | None = None
    """Attempts per group and agent, those with the greatest return first; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """What one agent did in one attempt."""

    group: tuple[str, str]
    reward: float | None
    items: list[TrajectoryGroup | Example]


@dataclass(slots=True)
class _Reading:
    """The state of reading one run."""

    selection: Selection
    selector: AgentSelector
    adapt: Callable[[AttemptRecord], AdaptedAttempt]
    filters: Sequence[Filter] = ()
    losses: Losses = field(default_factory=Losses)
    seen: set[str] = field(default_factory=set[str])
    units: list[_Unit] = field(default_factory=list[_Unit])

    def add(self, record: AttemptRecord) -> None:
        """Take the chosen agents of an attempt, or count why it is left out."""
        cause = _unusable(record)
        if not cause:
            try:
                adapted = self.adapt(record)
            except CaptureError:
                cause = "attempts_not_exact"
            except RewardError:
                cause = "attempts_without_reward"
            else:
                self._take(record, adapted)
                return
        self.losses.add(cause)

    def _take(self, record: AttemptRecord, adapted: AdaptedAttempt) -> None:
        recorded = {agent for agent, paths in adapted.trajectories.items() if paths}
        exact = recorded - unclean_agents(record, self.filters)
        texts: dict[str, list[AgentCall]] = defaultdict(list)
        for call in record.calls:
            if call.agent not in exact and self.selector.matches(call.agent):
                texts[call.agent].append(call)
        self.seen |= {*adapted.seen, *exact, *texts}
        for agent in sorted(exact):
            returned = adapted.returns[agent]
            group = _exact(record, returned, list(adapted.trajectories[agent]))
            self._offer(record, agent, _earned(returned), [group])
        for agent in sorted(texts):
            items: list[TrajectoryGroup | Example] = [
                cleaned(each, self.filters, self.losses) for each in _examples(record, texts[agent])
            ]
            self.losses.add("calls_rendered_again", len(items))
            own = agent in recorded
            reward = _earned(adapted.returns[agent]) if own else adapted.score
            self._offer(record, agent, reward, items)

    def _offer(
        self,
        record: AttemptRecord,
        agent: str,
        reward: float | None,
        items: list[TrajectoryGroup | Example],
    ) -> None:
        least = self.selection.min_reward
        if least is not None and (reward is None or reward < least):
            self.losses.add("attempts_below_min_reward")
        elif items:
            unit = _Unit(group=(record.rollout.group_id, agent), reward=reward, items=items)
            self.units.append(unit)

    def best(self) -> list[TrajectoryGroup | Example]:
        """Return the examples of the attempts to keep, in the order of the store."""
        keep = self.selection.keep
        if keep is not None:
            groups: dict[tuple[str, str], list[_Unit]] = defaultdict(list)
            for unit in self.units:
                groups[unit.group].append(unit)
            kept = {
                id(unit)
                for units in groups.values()
                for unit in sorted(units, key=_descending)[:keep]
            }
            self.losses.add("attempts_not_kept", len(self.units) - len(kept))
            self.units = [unit for unit in self.units if id(unit) in kept]
        return [item for unit in self.units for item in unit.items]


async def read_run(
    target: str, selection: Selection, filters: Sequence[Filter] = ()
) -> tuple[list[TrajectoryGroup | Example], Losses]:
    """Return what the chosen agents did in the training rollouts of a stored run.

    An agent's calls are one group with the recorded tokens. If the gateway recorded none of its
    tokens, as for a model behind an API, each call is a conversation to render, counted as
    ``calls_rendered_again``; its reward is then the attempt's whole score. So are the calls of an
    agent of which a filter changes a text.

    Args:
        target: A run's directory, a configuration, a store's file or address.
        selection: The agents and attempts.
        filters: Those of the run that learns.

    Raises:
        ConfigError: there is no store, a chosen agent is not in it, or nothing is left.
    """
    plugins = load_plugins()
    address = locate_store(target, plugins)
    selector = AgentSelector(selection.agents)
    adapt = _adapting(address, plugins, selection.agents)
    reading = _Reading(selection, selector, adapt, filters)
    async with open_for_reading(address, plugins) as store:
        async for rollouts in rollout_pages(store, None, size=_PAGE):
            wanted = [rollout for rollout in rollouts if rollout.mode == "train"]
            async for record in attempt_records(store, wanted):
                reading.add(record)
    if reading.seen:
        selector.check(reading.seen)
    items = reading.best()
    if not items:
        raise ConfigError(
            f"Run {target!r} has no attempt to imitate of the agents {list(selection.agents)}; left "
            f"out: {reading.losses.counts}"
        )
    return items, reading.losses


def _adapting(
    address: StoreAddress, plugins: PluginManager, agents: Sequence[str]
) -> Callable[[AttemptRecord], AdaptedAttempt]:
    """Return the adapter of a run, for these agents whether or not the run trained them."""
    run = address.run
    name = run.capture.adapter if run is not None else "trajectory"
    if run is not None:
        address.check_offered(plugins, "adapters", name)
    known = resolve_policies(run, training=False) if run is not None else None
    weights = run.channel_weights if run is not None else {}
    make: Callable[..., Adapter] = plugins.registry("adapters").resolve(name)

    def adapt(record: AttemptRecord) -> AdaptedAttempt:
        policies = known if known is not None else _answering(record)
        return make(list(agents), policies=policies, channel_weights=weights).adapt(record)

    return adapt


def _answering(record: AttemptRecord) -> list[Policy]:
    """Return the policies that answered, as trainable: each call records whether it is trained."""
    names = {span.call.policy for span in record.spans if span.call is not None}
    return [
        Policy(name=name, trainable=True, train_constrained=True) for name in sorted(names) if name
    ]


def _unusable(record: AttemptRecord) -> str:
    attempt = record.attempt
    if not (attempt.status.final and attempt.sealed):
        return "attempts_running"
    if attempt.status is not AttemptStatus.SUCCEEDED:
        return "attempts_failed"
    return "" if record.spans else "attempts_without_spans"


def _earned(returned: AgentReturn) -> float | None:
    """Return an agent's rewards in an attempt, over all targets; None if they are unknown."""
    if returned.failure is not None or returned.unrewarded:
        return None
    parts = [returned.value, *returned.runs.values(), *returned.calls.values()]
    parts += [value for choices in returned.choices.values() for value in choices.values()]
    return math.fsum(parts)


def _exact(
    record: AttemptRecord, returned: AgentReturn, paths: list[Trajectory]
) -> TrajectoryGroup:
    # Rewards chose the attempt; with those of choices, siblings that nothing continued would count.
    plain = msgspec.structs.replace(returned, runs={}, calls={}, choices={})
    return TrajectoryGroup(
        group_id=record.rollout.group_id,
        task_id=record.rollout.task.id,
        agent=returned.agent,
        policy=paths[0].policy,
        returns=[plain],
        trajectories=[paths],
    )


def _examples(record: AttemptRecord, calls: Sequence[AgentCall]) -> Iterator[Example]:
    for call in calls:
        answer: dict[str, Any] = {"role": "assistant", "content": call.answer or None}
        if call.reasoning:
            answer["reasoning_content"] = call.reasoning
        if call.tool_calls:
            answer["tool_calls"] = call.tool_calls
        if call.error or not (call.answer or call.tool_calls):
            continue
        yield Example(
            place=f"attempt {record.attempt.id}, call {call.id}",
            agent=call.agent,
            messages=[*call.messages, answer],
            tools=list(call.record.tools),
            trained=(len(call.messages),),
        )


def _descending(unit: _Unit) -> float:
    return math.inf if unit.reward is None else -unit.reward

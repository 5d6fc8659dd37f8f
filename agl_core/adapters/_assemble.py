"""Conversion of one joined attempt to trajectories and returns per agent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from agl_core.adapters._credit import credit
from agl_core.adapters._join import JoinedAttempt, JoinedCall, join
from agl_core.adapters._select import AgentSelector
from agl_core.adapters._tree import link, trajectories
from agl_core.errors import CaptureError
from agl_core.interfaces import AdaptedAttempt, AttemptRecord
from agl_core.types import Policy


def adapt_trained(
    record: AttemptRecord,
    *,
    agents: AgentSelector,
    policies: Sequence[Policy],
    channel_weights: Mapping[str, float],
) -> AdaptedAttempt:
    """Build the trajectories of the agents to train; see `agl_core.interfaces.Adapter.adapt`."""
    joined = join(record, agents=agents, policies=policies)
    return assemble(joined, _trained_calls(joined), channel_weights=channel_weights)


def assemble(
    joined: JoinedAttempt,
    by_agent: Mapping[str, Sequence[JoinedCall]],
    *,
    channel_weights: Mapping[str, float],
) -> AdaptedAttempt:
    """Link the chosen calls, credit them and split them into trajectories.

    Args:
        joined: The attempt.
        by_agent: The chosen calls by agent, in causal order.
        channel_weights: Weight of each reward channel; channels without one have weight 1.

    Raises:
        RewardError: see `credit`.
    """
    samples = {agent: link(calls) for agent, calls in by_agent.items()}
    credited = credit(joined, samples, channel_weights=channel_weights)
    rollout = joined.record.rollout
    return AdaptedAttempt(
        rollout_id=rollout.id,
        attempt_id=joined.record.attempt.id,
        group_id=rollout.group_id,
        task_id=rollout.task.id,
        trajectories={
            agent: trajectories(of_agent, rollout=rollout, rewards=credited.aimed)
            for agent, of_agent in samples.items()
        },
        returns=credited.returns,
        score=credited.score,
        channels=credited.channels,
        calls=len(joined.calls),
        seen=joined.seen,
        losses=joined.losses,
        overflowed=joined.overflowed,
        aliases=joined.aliases,
    )


def _trained_calls(joined: JoinedAttempt) -> dict[str, list[JoinedCall]]:
    """Return the calls to train on by agent, in causal order.

    Raises:
        CaptureError: two policies served the same agent.
    """
    by_agent: dict[str, list[JoinedCall]] = defaultdict(list)
    for call in joined.calls:
        if call.trained:
            by_agent[call.agent].append(call)
    for agent, calls in by_agent.items():
        served = sorted({call.call.policy for call in calls})
        if len(served) > 1:
            raise CaptureError(
                f"Agent {agent!r} was answered by the policies {served} in one attempt: let one "
                f"policy serve it, or give the two parts different agent names"
            )
    return dict(by_agent)

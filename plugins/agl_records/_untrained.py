"""Trajectories of attempts whose rollouts are not for training, such as evaluations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agl_core.adapters import AgentSelector, JoinedCall, assemble, images_of, join
from agl_core.errors import CaptureError
from agl_core.interfaces import AdaptedAttempt, AttemptRecord
from agl_core.types import ModelCall, Policy


def adapt_untrained(
    record: AttemptRecord,
    *,
    agents: Sequence[str],
    policies: Sequence[Policy],
    channel_weights: Mapping[str, float],
) -> AdaptedAttempt:
    """Build the trajectories of an attempt whose rollout is not for training.

    Calls of such an attempt need no tokens and may be sampled greedily. A call of a chosen agent
    without exact tokens, or with images whose positions its token ids do not state, is left out of
    the trajectories and counted as ``calls_without_tokens``.

    Raises:
        CaptureError: the recorders contradict each other.
        RewardError: there is no reward, or a reward is not finite or names an unknown target.
    """
    selector = AgentSelector(agents)
    joined = join(record, agents=selector, policies=policies)
    by_agent: dict[str, list[JoinedCall]] = defaultdict(list)
    for call in joined.calls:
        if not selector.matches(call.alias or call.agent):
            continue
        exact = _with_images(call) if _has_tokens(call.call) else None
        if exact is not None:
            by_agent[call.agent].append(exact)
        else:
            joined.losses.add("calls_without_tokens")
    return assemble(joined, by_agent, channel_weights=channel_weights)


def _with_images(call: JoinedCall) -> JoinedCall | None:
    """Return the call with its images; None if its token ids do not state their positions."""
    try:
        return replace(call, images=images_of(call.call, where=f"Call {call.call.id!r}"))
    except CaptureError:
        return None


def _has_tokens(call: ModelCall) -> bool:
    return bool(call.prompt_token_ids and call.choices) and all(
        choice.token_ids and len(choice.token_ids) == len(choice.logprobs)
        for choice in call.choices
    )

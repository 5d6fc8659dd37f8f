"""Trajectories of rollouts that train nobody: validation and test."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agl_core.adapters.adapter import assemble
from agl_core.adapters.images import images_of
from agl_core.adapters.join import JoinedCall, join
from agl_core.adapters.select import AgentSelector
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
    """Join an attempt whose rollout is not for training into token paths.

    Such calls need no tokens and may be sampled greedily. Those of the chosen agents that have no
    exact tokens, or showed more than these tell, lie on no path; they are counted as
    ``calls_without_tokens``.

    Raises:
        CaptureError: the recorders contradict each other.
        RewardError: no reward arrived, or one is not finite or hits nothing.
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
    """None where its ids do not tell what the model was shown."""
    try:
        return replace(call, images=images_of(call.call, where=f"Call {call.call.id!r}"))
    except CaptureError:
        return None


def _has_tokens(call: ModelCall) -> bool:
    return bool(call.prompt_token_ids and call.choices) and all(
        choice.token_ids and len(choice.token_ids) == len(choice.logprobs)
        for choice in call.choices
    )

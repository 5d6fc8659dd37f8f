"""Batches of answers that a policy gave."""

from __future__ import annotations

from collections.abc import Sequence

from agl_core.adapters import forest
from agl_core.interfaces import CreditedCall
from agl_core.types import Batch, CallCredit, Policy
from agl_testing._chat import ChatAnswer, ChatChoice
from agl_testing.bandit import make_triplet


def batch_of(policy: Policy, answer: ChatAnswer, *, step: int, version: int = 0) -> Batch:
    """Return a batch of an answer's choices."""
    calls = [
        _credited(policy, answer.prompt, choice, index=index, version=version)
        for index, choice in enumerate(answer.choices)
    ]
    return forest(calls, policy=policy.name, step=step)


def _credited(
    policy: Policy, prompt: Sequence[int], choice: ChatChoice, *, index: int, version: int
) -> CreditedCall:
    """Return a choice with a positive (the first) or a negative advantage."""
    size, call_id = len(choice.token_ids), f"call-{index}"
    triplet = make_triplet(
        call_id,
        choice.token_ids,
        rollout_id=f"ro-{index}",
        attempt_id=f"at-{index}",
        prompt_ids=list(prompt),
        logprobs=choice.logprobs,
        policy=policy.name,
        policy_version=version,
    )
    advantages = [1.0 if index == 0 else -0.5] * size
    credit = CallCredit(call_id=call_id, choice=0, advantages=advantages, weights=[1.0] * size)
    return CreditedCall(triplet=triplet, credit=credit, group=0)

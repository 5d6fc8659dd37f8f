"""Conversations as exact tokens: what the model would have sampled, after what it would have seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agl_core.interfaces import Renderer
from agl_core.types import (
    AgentReturn,
    Policy,
    Trajectory,
    TrajectoryGroup,
    Triplet,
    pack_floats,
    pack_ints,
)
from agl_imitation._conversations import Example

__all__ = ["Chat", "UnusableExampleError", "rendered"]


class UnusableExampleError(ValueError):
    """A conversation that has no exact tokens, or too many."""

    def __init__(self, cause: str, message: str) -> None:
        """Set the cause, which is counted, and the message."""
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """How a policy reads conversations."""

    policy: Policy
    """With the version that is current."""
    render: Renderer
    limit: int | None
    """Most tokens of a prompt with its answer; None if unknown."""


def rendered(example: Example, chat: Chat) -> TrajectoryGroup:
    """Return the trained answers of a conversation as calls, each after its own prompt.

    For the answer at message i, the prompt is the rendering of messages[:i] with the start of the
    assistant's turn, which is what an agent's request would render. The answer is what the
    rendering of messages[:i + 1] has after it, up to the token that ends the answer. So no token is
    found by searching for text.

    Raises:
        UnusableExampleError: the chat template refuses a message, does not continue a prompt with
            its answer, or an answer with its prompt is too long.
    """
    calls: list[Triplet] = []
    for index in example.trained:
        prompt, answer = _split(example, index, chat.render)
        length = len(prompt) + len(answer)
        if chat.limit is not None and length > chat.limit:
            raise UnusableExampleError(
                "conversations_too_long",
                f"{example.place}: message {index} ends after {length} tokens, but the context of "
                f"policy {chat.policy.name!r} holds {chat.limit}",
            )
        calls.append(_triplet(example, (prompt, answer), chat.policy, ordinal=len(calls)))
    return TrajectoryGroup(
        group_id=example.place,
        task_id=example.place,
        agent=example.agent,
        policy=chat.policy.name,
        returns=[
            AgentReturn(
                rollout_id=example.place, attempt_id=example.place, agent=example.agent, value=0.0
            )
        ],
        trajectories=[[_path(call) for call in calls]],
    )


def _split(example: Example, index: int, render: Renderer) -> tuple[Sequence[int], Sequence[int]]:
    messages, where = example.messages, f"{example.place}: message {index}"
    if index and messages[index - 1]["role"] == "assistant":
        raise UnusableExampleError(
            "conversations_not_exact",
            f"{where} follows another assistant message, so no prompt ends before it: join the two",
        )
    try:
        prompt = list(render(messages[:index], example.tools))
        whole = list(render(messages[: index + 1], example.tools))
    except ValueError as error:
        raise UnusableExampleError("conversations_not_rendered", f"{where}: {error}") from error
    if whole[: len(prompt)] != prompt or len(whole) == len(prompt):
        raise UnusableExampleError(
            "conversations_not_exact",
            f"{where}: the chat template renders the conversation with this answer differently from "
            f"its prompt, so which tokens the model samples is unknown",
        )
    return prompt, whole[len(prompt) :]


def _triplet(
    example: Example, ids: tuple[Sequence[int], Sequence[int]], policy: Policy, *, ordinal: int
) -> Triplet:
    prompt, answer = ids
    return Triplet(
        call_id=f"{example.place}#{ordinal}",
        rollout_id=example.place,
        attempt_id=example.place,
        agent=example.agent,
        agent_run_id="",
        ordinal=ordinal,
        run_ordinal=0,
        choice=0,
        continued=True,
        prompt_ids=pack_ints(prompt),
        response_ids=pack_ints(answer),
        logprobs=pack_floats([0.0] * len(answer)),  # sampled by no model
        logprobs_mode="",
        temperature=1.0,
        finish_reason="stop",
        policy=policy.name,
        policy_version=policy.version,
    )


def _path(call: Triplet) -> Trajectory:
    context = [-1] * len(call.prompt_ids)
    return Trajectory(
        rollout_id=call.rollout_id,
        attempt_id=call.attempt_id,
        group_id=call.rollout_id,
        task_id=call.rollout_id,
        agent=call.agent,
        policy=call.policy,
        token_ids=call.prompt_ids + call.response_ids,
        call_index=pack_ints([*context, *[0] * len(call.response_ids)]),
        logprobs=pack_floats([0.0] * len(call.prompt_ids)) + call.logprobs,
        calls=[call],
    )

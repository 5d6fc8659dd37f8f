"""``emit_tool_call`` that makes the call, and rewards of several dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import agl_core
from agl_compat._client import chat
from agl_compat._names import renamed
from agl_core.errors import ConfigError, RewardError
from agl_core.tracing import agent_scope


class ChatAnswer(dict[str, Any]):
    """A chat completion, whose fields are also attributes; a missing field is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)


def emit_tool_call(
    model: str = "",
    messages: Sequence[Mapping[str, Any]] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    context: Mapping[str, Any] | None = None,
    **options: Any,
) -> ChatAnswer:
    """Ask a model, which may call tools, and return its chat completion.

    `agl_core.emit_tool_call` is another function: it records a tool call that was made.

    Args:
        model: The model's name; in a rollout the policy of the agent answers.
        messages: The conversation, as of chat completions.
        tools: Tools, as of chat completions.
        context: Recorded with the call; its ``agent`` names the agent that asks.
        options: Further fields of the request, such as ``temperature``.

    Raises:
        ConfigError: there are no messages, or outside a rollout no address is set.
        EngineError: the model does not answer.
    """
    renamed("emit_tool_call(model=...)", "your client of chat completions; agl records its calls")
    if not messages:
        raise ConfigError(
            "emit_tool_call got no messages: give model and messages to make a call; "
            "agl.emit_tool_call(name, arguments, result) records one that was made"
        )
    body: dict[str, Any] = {"model": model or "auto", "messages": [*messages], **options}
    if tools:
        body["tools"] = [*tools]
    agent = (context or {}).get("agent")
    with agent_scope(str(agent)) if agent else nullcontext():
        if context:
            agl_core.emit_object(dict(context), name="context")
        return cast("ChatAnswer", _answer(chat(body)))


def emit_reward(
    reward: Any,
    channel: str = "main",
    *,
    primary_key: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    **target: Any,
) -> None:
    """Record a reward of this attempt.

    Args:
        reward: A number, or a mapping of dimensions to numbers. Of a mapping only the dimension
            `primary_key` is the reward; the others are recorded and not trained.
        channel: As of `agl_core.emit_reward`.
        primary_key: The dimension that counts; it may be left out if there is only one.
        attributes: Recorded with the reward.
        target: Further arguments of `agl_core.emit_reward`, such as ``call`` and ``why``.

    Raises:
        RewardError: the value is not a finite number, or `primary_key` names no dimension.
    """
    if isinstance(reward, Mapping):
        dimensions = dict(cast("Mapping[str, Any]", reward))
        renamed(
            "emit_reward with dimensions", "agl.emit_reward(value, channel) and channel_weights"
        )
        key = primary_key or (next(iter(dimensions)) if len(dimensions) == 1 else "")
        if key not in dimensions:
            raise RewardError(
                f"emit_reward got the dimensions {sorted(dimensions)} and primary_key="
                f"{primary_key!r}: name the one that counts"
            )
        agl_core.emit_object(dimensions, name="reward_dimensions")
        reward = dimensions[key]
    if attributes:
        agl_core.emit_object(dict(attributes), name="reward_attributes")
    agl_core.emit_reward(reward, channel, **target)


def _answer(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return ChatAnswer({key: _answer(each) for key, each in fields.items()})
    if isinstance(value, list):
        return [_answer(each) for each in cast("list[Any]", value)]
    return value

"""Functions by which user code records rewards, messages, objects and tool calls.

Outside any rollout they do nothing, so that instrumented code runs unchanged in production.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from agl_core import semconv
from agl_core.clocks import monotonic, new_id
from agl_core.errors import RewardError
from agl_core.tracing._context import AttemptContext, active, enter
from agl_core.tracing._recorder import Recorder
from agl_core.tracing._spans import SpanStart, open_span, tool_attributes
from agl_core.tracing._values import describe, exception_attributes, represent, text
from agl_core.tracing._wrapping import emitter
from agl_core.types import (
    LLM,
    Attempt,
    Resources,
    Reward,
    RewardTarget,
    Rollout,
    SpanKind,
    Task,
    finite_number,
)

_FIX = "give one finite number, such as 0.0, 0.5 or True"


def reward_value(value: Any, *, source: str) -> float:
    """Return a reward as a number; True is 1.0 and False is 0.0.

    Any value that converts to exactly one float is valid, including values of array libraries.

    Args:
        value: The user's reward.
        source: The function that returned it, for the message.

    Raises:
        RewardError: the value is None, text, an array, infinite or not a number.
    """
    number = finite_number(value)
    if number is None:
        raise RewardError(f"{source} gave the reward {represent(value)}: {_FIX}")
    return number


def emit_reward(
    value: Any,
    channel: str = "main",
    *,
    call: str | None = None,
    choice: int | None = None,
    agent: str | None = None,
    agent_run: str | None = None,
) -> None:
    """Record a reward in this attempt; rewards of one channel and target are summed.

    Without a target the reward is for the whole attempt.

    Args:
        value: A finite number or a boolean.
        channel: Channels are logged separately and weighted in the configuration.
        call: Id of one call.
        choice: Index of one choice of `call`, for calls with ``n > 1``.
        agent: Name of an agent: all its runs in this attempt.
        agent_run: Id of one run of an agent; with `agent` if several agents share the id.

    Raises:
        RewardError: the value is not a finite number, or the target is ambiguous. Never outside a
            rollout.
    """
    context = active()
    if context is None:
        return
    target = _target(call, choice, agent, agent_run)
    context.recorder.reward(
        Reward(
            value=reward_value(value, source="emit_reward"),
            channel=_name("channel", channel),
            target=target,
        )
    )


def _target(
    call: str | None, choice: int | None, agent: str | None, agent_run: str | None
) -> RewardTarget:
    given = {"call": call, "agent": agent, "agent_run": agent_run}
    units = {name: _name(name, unit) for name, unit in given.items() if unit is not None}
    target = RewardTarget(choice=choice, **units)
    if len(target.units) > 1:
        raise RewardError(
            f"emit_reward got the targets {[*units]}: name one of call, agent and agent_run, "
            f"or emit one reward for each"
        )
    if choice is not None and call is None:
        raise RewardError(f"emit_reward got choice={choice!r} without a call: name the call too")
    if choice is not None and (type(choice) is not int or choice < 0):
        raise RewardError(f"emit_reward got choice={choice!r}: give the index of a choice, from 0")
    return target


def _name(parameter: str, given: Any) -> str:
    """Return a name as plain text: spans with a name of another type could not be decoded."""
    if not isinstance(given, str):
        raise RewardError(f"emit_reward got {parameter}={represent(given)}: give it as text")
    return text(given)


def alias(name: str, alias: str) -> None:
    """Set an agent's alias for the rest of this attempt, before the agent's first model call.

    Policies, the selection of agents, baselines and reports use the alias, such as the role of a
    seat in this game. Trajectories, agent runs and prompts keep the name. Several agents may have
    one alias. Outside any rollout this does nothing.

    Raises:
        ConfigError: the agent has already called its model under another name, or a name is
            empty, not text, or reserved.
    """
    context = active()
    if context is None:
        return
    context.aliases.set(name, alias)
    if not context.recorder.closed:  # in a subprocess, whose calls carry the alias
        context.recorder.point(
            semconv.AGL_ALIAS, attributes={semconv.AGL_AGENT: name, semconv.AGL_ALIAS: alias}
        )


@emitter
def emit_message(content: Any, *, role: str = "") -> None:
    """Record a message of the agent, such as a note or a step's summary.

    Raises:
        ConfigError: an argument is unknown or missing.
    """
    if (context := active()) is not None:
        attributes = {semconv.AGL_MESSAGE: {"role": role, "content": content}}
        context.recorder.point(semconv.AGL_MESSAGE, attributes=attributes)


@emitter
def emit_object(value: Any, *, name: str = "object") -> None:
    """Record any value under a name; a value without a JSON form is recorded as its ``repr``.

    Raises:
        ConfigError: an argument is unknown or missing.
    """
    if (context := active()) is not None:
        context.recorder.point(name, attributes={semconv.AGL_OBJECT: value})


@emitter
def emit_tool_call(
    name: str,
    arguments: Any = None,
    result: Any = None,
    *,
    tool_call_id: str | None = None,
    error: str = "",
) -> None:
    """Record a tool call that has already ended.

    Args:
        name: The tool's name.
        arguments: The tool's arguments.
        result: The tool's result.
        tool_call_id: The id of the tool call in the model's answer.
        error: The error message; empty without an error.

    Raises:
        ConfigError: an argument is unknown or missing.
    """
    if (context := active()) is None:
        return
    attributes = tool_attributes(name, arguments, call_id=tool_call_id)
    attributes[semconv.GEN_AI_TOOL_RESULT] = result
    recorder = context.recorder
    span = recorder.start(SpanKind.TOOL, name, attributes=attributes)
    recorder.end(span, status="error" if error else "ok", error=error)


@emitter
def emit_exception(error: BaseException) -> None:
    """Record an exception that the agent has handled."""
    if (context := active()) is not None:
        context.recorder.point(
            semconv.EXCEPTION_TYPE,
            attributes=exception_attributes(error),
            status="error",
            error=describe(error),
        )


@contextmanager
def trace(name: str, input: Any = None) -> Generator[Recorder, None, None]:  # noqa: A002  the field's name
    """Record spans outside any rollout, under a root span named `name`.

    Yields the recorder; ``recorder.snapshot()`` returns its spans. Requests are not changed. Inside
    a rollout the root span's parent is the current scope, and the recorder is the attempt's.
    """
    context = active()
    attributes = None if input is None else {semconv.AGL_INPUT: input}
    root = SpanStart(SpanKind.OPERATION, name, attributes=attributes)
    if context is not None:
        with open_span(context.recorder, root):
            yield context.recorder
        return
    rollout = Rollout(id=new_id("rollout"), task=Task(id=name, input=input), run_id="trace")
    attempt = Attempt(id=new_id("attempt"), rollout_id=rollout.id, fence=1, worker="trace")
    recorder = Recorder(rollout.id, attempt.id)
    local = AttemptContext(
        rollout=rollout,
        attempt=attempt,
        llm=LLM(model=""),
        resources=Resources(),
        recorder=recorder,
        origins=frozenset(),
        deadline=monotonic() + rollout.limits.timeout_s,
    )
    with enter(local), open_span(recorder, root):
        yield recorder

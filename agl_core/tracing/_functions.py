"""Functions for user code: names of agents and operations, rewards, messages and tool calls.

Outside any rollout they do nothing, so that instrumented code runs unchanged in production.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from agl_core import semconv
from agl_core.clocks import monotonic, new_id
from agl_core.errors import RewardError
from agl_core.tracing._context import AttemptContext, active, enter
from agl_core.tracing._recorder import Recorder
from agl_core.tracing._spans import SpanScope, SpanStart, open_span, tool_attributes
from agl_core.tracing._values import describe, exception_attributes, represent, text
from agl_core.tracing._wrapping import emitter, guarded
from agl_core.types import (
    LLM,
    Attempt,
    Resources,
    Reward,
    RewardTarget,
    Rollout,
    Scope,
    Score,
    SpanKind,
    Task,
    finite_number,
)

_FIX = "give one finite number, such as 0.0, 0.5 or True"
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(slots=True, eq=False)
class _Entry:
    """One ``with`` block that is running."""

    named: Named
    span: SpanScope | None
    left: bool = False


_ENTRIES: Final[ContextVar[tuple[_Entry, ...]]] = ContextVar("agl_entries", default=())
"""The ``with`` blocks around this code and around the start of its task, outermost first."""


class Named:
    """Opens a span and its scope around a ``with`` block, or around every call of a function.

    As a decorator it takes plain, async, generator and async generator functions; a generator's
    scope is current only while its body runs. Exceptions pass unchanged and end the span as an
    error. Outside a rollout it does nothing. One object can be used for any number of blocks,
    nested or concurrent in several tasks and threads.
    """

    def __init__(self, start: SpanStart) -> None:
        """Set the start of every span; `operation` and `agent_scope` make these objects."""
        self._start = start
        self._entries: list[_Entry] = []

    def __enter__(self) -> Scope | None:
        """Open the span; return its scope, or None outside a rollout."""
        span = self._open()
        entry = _Entry(self, span.activate() if span is not None else None)
        self._entries.append(entry)
        _ENTRIES.set((*_open_entries(), entry))
        return entry.span

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        here = [entry for entry in _open_entries() if entry.named is self]
        # A generator may be closed in another context than the one that entered its block.
        entry = (here or self._entries)[-1]
        entry.left = True
        self._entries.remove(entry)
        _ENTRIES.set(_open_entries())
        if entry.span is not None:
            entry.span.end(error)

    def __call__(self, function: _Function) -> _Function:
        """Decorate `function`; each call opens its own span."""
        if inspect.isasyncgenfunction(function):
            wrapped = self._async_generator(function)
        elif inspect.isgeneratorfunction(function):
            wrapped = self._generator(function)
        elif inspect.iscoroutinefunction(function):
            wrapped = self._coroutine(function)
        else:
            wrapped = self._plain(function)
        return cast("_Function", functools.wraps(function)(wrapped))

    @guarded()
    def _open(self) -> SpanScope | None:
        context = active()
        return open_span(context.recorder, self._start) if context is not None else None

    def _plain(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._open() or nullcontext():
                return function(*args, **kwargs)

        return call

    def _coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            with self._open() or nullcontext():
                return await function(*args, **kwargs)

        return call

    def _generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            inner: Generator[Any, Any, Any] = function(*args, **kwargs)
            span = self._open()
            if span is None:
                return (yield from inner)
            result: Any = yield from _steps(inner, span)
            return result

        return call

    def _async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # An explicit loop, because `async for` would not pass asend and athrow through.
        async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            inner: AsyncGenerator[Any, Any] = function(*args, **kwargs)
            span = self._open()
            step = span.running() if span is not None else nullcontext()
            resume: Callable[[Any], Any] = inner.asend
            argument: Any = None
            try:
                while True:
                    try:
                        with step:
                            item = await resume(argument)
                    except StopAsyncIteration:
                        break
                    try:
                        resume, argument = inner.asend, (yield item)
                    except GeneratorExit:
                        await inner.aclose()
                        raise
                    except BaseException as error:  # noqa: BLE001  handed to the body
                        resume, argument = inner.athrow, error
            except BaseException as error:
                if span is not None:
                    span.end(error)
                raise
            if span is not None:
                span.end()

        return call


def _open_entries() -> tuple[_Entry, ...]:
    return tuple(entry for entry in _ENTRIES.get() if not entry.left)


def _steps(inner: Generator[Any, Any, Any], span: SpanScope) -> Generator[Any, Any, Any]:
    """Drive a generator with its scope current in each step; send, throw and close pass through."""
    resume: Callable[[Any], Any] = inner.send
    argument: Any = None
    step = span.running()
    try:
        while True:
            try:
                with step:
                    item = resume(argument)
            except StopIteration as stop:
                span.end()
                return stop.value
            try:
                resume, argument = inner.send, (yield item)
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as error:  # noqa: BLE001  handed to the body
                resume, argument = inner.throw, error
    except BaseException as error:
        span.end(error)
        raise


def operation(name: str, **attributes: Any) -> Named:
    """Name a part of the program, in a ``with`` statement or as a decorator.

    It adds a span and does not change the agent: calls inside belong to the agent around it.

    Args:
        name: The span's name.
        attributes: JSON values of the span.
    """
    title = text(name)
    return Named(SpanStart(SpanKind.OPERATION, title, attributes=attributes))


def agent_scope(name: str, *, trainable: bool = True, run_id: str | None = None) -> Named:
    """Name the agent of the calls inside, for programs without a framework.

    Args:
        name: The agent, as in ``agents=[...]``.
        trainable: False excludes the calls inside from training, even if the agent is selected.
        run_id: An earlier run of the agent to continue. By default each use begins a new run,
            except inside a scope of the same agent, whose run it continues.
    """
    agent, run = text(name), text(run_id) if run_id else None
    return Named(
        SpanStart(SpanKind.AGENT, agent, agent=agent, agent_run_id=run, trainable=trainable)
    )


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


def emit_reward(  # noqa: PLR0913  the fields of a Reward, by keyword
    value: Any,
    channel: str = "main",
    *,
    why: str = "",
    call: str | None = None,
    choice: int | None = None,
    agent: str | None = None,
    agent_run: str | None = None,
) -> None:
    """Record a reward in this attempt; rewards of one channel and target are summed.

    Without a target the reward is for the whole attempt.

    Args:
        value: A finite number, a boolean or a `Score`.
        channel: Channels are logged separately and weighted in the configuration.
        why: The reason for the value; without it, that of the `Score`. A record keeps the first
            16,384 characters.
        call: Id of one call.
        choice: Index of one choice of `call`, for calls with ``n > 1``.
        agent: Name of an agent: all its runs in this attempt.
        agent_run: Id of one run of an agent; with `agent` if several agents share the id.

    Raises:
        RewardError: the value is not a finite number, the reason is not text, or the target is
            ambiguous. Never outside a rollout.
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
            why=_name("why", why) or (value.why if isinstance(value, Score) else ""),
        )
    )


def _target(
    call: str | None, choice: int | None, agent: str | None, agent_run: str | None
) -> RewardTarget:
    given = {"call": call, "agent": agent, "agent_run": agent_run}
    units = {name: _name(name, unit) for name, unit in given.items() if unit is not None}
    target = RewardTarget(choice=choice, **units)
    target.check("emit_reward")
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

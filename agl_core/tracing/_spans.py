"""Opening a span together with its scope: a `Tracer` opens a `SpanScope`, which is both.

An integration makes one `Tracer` and opens a `SpanScope` for each agent run, model call or tool use
of its framework::

    span = TRACER.open(context.recorder, SpanStart(SpanKind.TOOL, "search"))

The integration makes the scope current in one of three ways:

- for a block: ``with span: ...``, which also ends it;
- from one hook to another: `SpanScope.activate`, then `SpanScope.end` from any task or thread;
- in single steps, such as those of a stream: `SpanScope.running`, `run` and `stream`.

Exceptions pass unchanged and end the span as an error. Methods of an open span never raise: their
errors are recorded as capture errors of the attempt.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

from agl_core import semconv
from agl_core.clocks import new_id
from agl_core.tracing._recorder import Recorder
from agl_core.tracing._scopes import (
    CURRENT,
    close_scope,
    current_scope,
    inherited,
    opened_here,
    swap_current,
)
from agl_core.tracing._values import text
from agl_core.tracing._wrapping import report
from agl_core.types import Scope, ScopeKind, SpanKind

UNNAMED: Final = "unnamed agent"
"""Span name of an agent without a name."""
HANDOFF: Final = "handoff"
"""Name of the message span of a handoff from one agent to another."""

_DONE: Final = object()
_SCOPES: Final[Mapping[SpanKind, ScopeKind]] = {
    SpanKind.AGENT: "agent",
    SpanKind.LLM: "call",
    SpanKind.TOOL: "tool",
    SpanKind.OPERATION: "operation",
    SpanKind.MESSAGE: "operation",
}
_T = TypeVar("_T")


@dataclass(slots=True)  # a frozen one takes five times as long to create
class SpanStart:
    """The initial values of a span and its scope."""

    kind: SpanKind | None
    """None for a scope without a span: spans inside have the surrounding span as their parent."""
    name: str = ""
    scope: ScopeKind | None = None
    """By default the scope of the span's kind."""
    agent: str | None = None
    """The span's agent: by default that of the surrounding scope; empty for no agent."""
    agent_run_id: str | None = None
    """By default the run of the surrounding scope, if it has the same agent."""
    new_run: bool = False
    """Begin a new run of the agent even inside a scope of the same agent."""
    trainable: bool = True
    speaker: str | None = None
    """The agent of the calls inside, if it is not `agent`; by default none in a ``tool`` scope."""
    speaker_run_id: str | None = None
    attributes: Mapping[str, Any] | None = None


class SpanScope(Scope):
    """An open span with its scope, made by `Tracer.open`."""

    __slots__ = (
        "_ended",
        "_has_span",
        "_was_current",
        "caught",
        "inside",
        "key",
        "on_end",
        "recorder",
        "span_agent",
        "span_run_id",
        "tracer",
    )

    def __init__(
        self,
        tracer: Tracer,
        recorder: Recorder,
        start: SpanStart,
        span_id: str,
        outer: Scope | None,
        owner: tuple[str | None, str | None],
    ) -> None:
        """Set up the scope, see `Tracer.open`; `owner` is agent and agent run of the span."""
        kind: ScopeKind = start.scope or _SCOPES[start.kind or SpanKind.OPERATION]
        agent, run_id = self.span_agent, self.span_run_id = owner
        if start.speaker is not None or kind == "tool":
            agent, run_id = start.speaker, start.speaker_run_id
        # A call of Scope.__init__ would take as long as this whole method.
        self.agent, self.agent_run_id, self.trainable = inherited(
            outer, kind, span_id, agent or None, run_id, start.trainable
        )
        self.kind = kind
        self.span_id = span_id
        self.parent = outer
        self.call_id = None
        self.body_hash = None
        self.unanswered = False
        self.closed = False
        self.tracer = tracer
        self.recorder = recorder
        self.caught: BaseException | None = None
        """An exception inside that the framework turned into text."""
        self.key: object = None
        """A key by which a second hook finds the span of the same work."""
        self.on_end: Callable[[], object] | None = None
        """Called once, when the span ends; it must not raise."""
        self._has_span = start.kind is not None
        self._ended = False
        self._was_current = False
        self.inside: Scope | None = self
        """The scope that is current in the next step."""

    def activate(self) -> Self:
        """Make the scope current in this context, until it ends."""
        self._was_current = True
        swap_current(self)
        return self

    def __enter__(self) -> Self:
        return self.activate()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end(error)

    def running(self) -> _Running:
        """Make the scope current inside the ``with`` block, and restore the previous one after it.

        A scope that is left open inside is current again in the next block.
        """
        self._was_current = True
        return _Running(self)

    async def run(self, step: Callable[[], Awaitable[_T]]) -> _T:
        """Await `step` inside; an exception ends the span and passes unchanged."""
        try:
            with self.running():
                return await step()
        except BaseException as error:
            self.end(error)
            raise

    async def stream(
        self,
        items: AsyncIterable[Any],
        see: Callable[[Any], None] | None = None,
        *,
        kind: type[Any] = object,
    ) -> AsyncGenerator[Any, None]:
        """Yield `items`, each produced with the scope current; the end of the items ends the span.

        Args:
            items: An iterable of the framework or of a user's class; it may lack ``aclose``.
            see: Called with each item before it is yielded.
            kind: Class of the items for which `see` is called.
        """
        inside, steps = self.running(), aiter(items)
        try:
            while True:
                with inside:
                    item = await anext(steps, _DONE)
                if item is _DONE:
                    break
                if see is not None and isinstance(item, kind):
                    see(item)
                yield item
        except BaseException as error:
            problem = error
            try:
                if (close := getattr(steps, "aclose", None)) is not None:
                    with inside:
                        await close()
            except BaseException as failed:
                problem = failed
                raise
            finally:
                self.end(problem)
            raise
        self.end()

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes to the span, ended or not."""
        try:
            self.recorder.update(self.span_id, attributes=attributes)
        except Exception as error:  # noqa: BLE001  telemetry never raises into user code
            report(f"attributes were not recorded: {error!r}", framework=self.tracer.framework)

    def close(self) -> None:
        """End only the scope, so that later requests are outside it; the span stays open."""
        if not self.closed:
            self._close_scope()

    def _close_scope(self) -> None:
        if self._was_current:
            close_scope(self)
        else:
            # The framework's context has the span: scopes of the user inside it stay current.
            self.closed = True

    def end(
        self,
        error: BaseException | None = None,
        *,
        failed: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """End scope and span; repeated calls do nothing.

        Args:
            error: The exception raised inside. `GeneratorExit` and the tracer's control flow
                exceptions are not failures.
            failed: The error message, possibly empty, if the framework turned the exception into
                text; None without a failure.
            attributes: Attributes to add to the span.
        """
        if self._ended:
            return
        self._ended = True
        self._close_scope()
        if self.on_end is not None:
            self.on_end()
        if not self._has_span:
            return
        error = error or self.caught
        try:
            if error is None:
                status = "ok" if failed is None else "error"
                self.recorder.end(
                    self.span_id, status=status, error=failed or "", attributes=attributes
                )
            else:
                control_flow = self.tracer.control_flow()
                self.recorder.end_with(
                    self.span_id, error, control_flow=control_flow, attributes=attributes
                )
        except Exception as problem:  # noqa: BLE001  telemetry never raises into user code
            report(f"a span was not ended: {problem!r}", framework=self.tracer.framework)


class ScopeFrame:
    """The current scope of a generator's body without a span: its reader has another one."""

    __slots__ = ("inside",)

    def __init__(self) -> None:
        """Begin with the scope that is current now."""
        self.inside = opened_here()

    def running(self) -> _Running:
        """Make the body's scope current inside the ``with`` block; see `SpanScope.running`."""
        return _Running(self)


class _Running:
    """A context manager as a class, which is faster than a generator: every step enters it."""

    __slots__ = ("_before", "_frame")

    def __init__(self, frame: SpanScope | ScopeFrame) -> None:
        self._frame = frame
        self._before: Scope | None = None

    def __enter__(self) -> None:
        self._before = swap_current(self._frame.inside)

    def __exit__(self, *exception: object) -> None:
        # Not Token.reset, as a stream may be closed in another context than the one that reads it.
        self._frame.inside = swap_current(self._before)


class Tracer:
    """Opens the spans of one framework; make one, as a constant of the integration."""

    def __init__(
        self,
        framework: str,
        *,
        control_flow: Callable[[], tuple[type[BaseException], ...]] = tuple,
    ) -> None:
        """Set the framework.

        Args:
            framework: The integration's name, an attribute of every span.
            control_flow: Returns the exceptions that the framework uses for control flow: a span
                that they end has not failed.
        """
        self.framework = framework
        self.control_flow = control_flow

    def open(
        self, recorder: Recorder, start: SpanStart, *, parent: Scope | None = CURRENT
    ) -> SpanScope:
        """Begin a span and its scope, without making the scope current.

        Args:
            recorder: The recorder of the current attempt.
            start: Initial values.
            parent: The surrounding scope: by default the current one; None for the attempt. If it
                is given, the span's default agent is the agent of the parent's span, not the agent
                of calls in the parent's scope.
        """
        outer = current_scope() if parent is CURRENT else parent
        agent, run_id = start.agent, start.agent_run_id
        if agent is not None and type(agent) is not str:
            agent = text(agent)
        kind, above = start.kind, outer.span_id if outer is not None else ""
        span_id = new_id("span") if kind is not None or start.new_run else ""
        if agent and run_id is None:
            if outer is not None and outer.agent == agent and not start.new_run:
                run_id = outer.agent_run_id
            elif start.new_run or kind is SpanKind.AGENT or kind is SpanKind.LLM:
                run_id = span_id
        if kind is None:
            span_id = above
        else:
            attributes = start.attributes
            if self.framework:
                attributes = {semconv.AGL_FRAMEWORK: self.framework, **(attributes or {})}
            try:
                recorder.start(
                    kind,
                    start.name,
                    span_id=span_id,
                    parent_id=None if parent is CURRENT else above,
                    agent=agent,
                    agent_run_id=run_id,
                    attributes=attributes,
                    scope=outer,
                )
            except Exception as error:  # noqa: BLE001  telemetry: the scope's agent is still known
                report(f"a span was not recorded: {error!r}", framework=self.framework)
        return SpanScope(self, recorder, start, span_id, outer, (agent, run_id))

    def speaker(self) -> SpanScope | None:
        """Return the agent's span in which this code runs.

        None if the current scope is not an agent scope of this tracer: in tools, in model calls,
        and in scopes that the user opened.
        """
        scope = current_scope()
        if isinstance(scope, SpanScope) and scope.tracer is self and scope.kind == "agent":
            return scope
        return None

    def innermost(self) -> SpanScope | None:
        """Return the innermost span of this tracer around this code."""
        scope = current_scope()
        while scope is not None:
            if isinstance(scope, SpanScope) and scope.tracer is self:
                return scope
            scope = scope.parent
        return None

    def agent(
        self, name: str | None, *, run_id: str | None = None, speaker: str | None = None
    ) -> SpanStart:
        """Return the start of an agent's turn: a new run, unless it continues one.

        Args:
            name: The agent's name; without one, the agent of the surrounding scope.
            run_id: The run that the turn continues; by default that of the surrounding scope, if
                it has the same agent.
            speaker: The agent of the calls inside, if it is another one.
        """
        around = current_scope()
        name = text(name) if name else (around.agent if around is not None else None)
        return SpanStart(
            SpanKind.AGENT if name else SpanKind.OPERATION,
            name or UNNAMED,
            scope="agent",
            agent=name,
            agent_run_id=run_id,
            speaker=speaker if name else None,
        )

    def call(self, model: str) -> SpanStart:
        """Return the start of a model call by the current agent.

        Args:
            model: The model's name in the request; empty if unknown.
        """
        attributes = {semconv.GEN_AI_OPERATION_NAME: "chat"}
        if model:
            attributes[semconv.GEN_AI_REQUEST_MODEL] = model
        return self._by_speaker(SpanStart(SpanKind.LLM, model or "model", attributes=attributes))

    def tool(self, name: str, arguments: Any, *, call_id: str | None = None) -> SpanStart:
        """Return the start of a tool use by the current agent; see `tool_attributes`."""
        attributes = tool_attributes(name, arguments, call_id=call_id)
        return self._by_speaker(SpanStart(SpanKind.TOOL, name, attributes=attributes))

    def _by_speaker(self, start: SpanStart) -> SpanStart:
        speaker = self.speaker()
        if speaker is not None:
            start.agent, start.agent_run_id = speaker.span_agent, speaker.span_run_id
        return start


def tool_attributes(name: str, arguments: Any, *, call_id: str | None = None) -> dict[str, Any]:
    """Return the attributes of a tool's span.

    Args:
        name: The tool's name.
        arguments: The tool's arguments.
        call_id: The id of the tool call in the model's answer, if it has one.
    """
    attributes: dict[str, Any] = {
        semconv.GEN_AI_TOOL_NAME: name,
        semconv.GEN_AI_TOOL_ARGUMENTS: arguments,
    }
    if call_id:
        attributes[semconv.GEN_AI_TOOL_CALL_ID] = call_id
    return attributes


def handoff(source: str | None, target: Any, **fields: Any) -> SpanStart:
    """Return the start of a handoff's message span; `fields` are further fields of `SpanStart`."""
    attributes = {semconv.AGL_HANDOFF_FROM: source, semconv.AGL_HANDOFF_TO: target}
    attributes.update(fields.pop("attributes", {}))
    return SpanStart(SpanKind.MESSAGE, HANDOFF, attributes=attributes, **fields)


open_span: Final = Tracer("").open
"""Open a span without a framework; see `Tracer.open`."""


async def run_as(
    recorder: Recorder,
    name: str,
    step: Callable[[], Awaitable[_T]],
    *,
    parent: Scope | None = CURRENT,
) -> _T:
    """Await `step` as agent `name`, whose requests are never trained.

    Args:
        recorder: The recorder of the current attempt.
        name: A reserved name of the framework, such as ``@summarizer``.
        step: Calls a model.
        parent: As in `Tracer.open`; the parent of the requests' spans.
    """
    start = SpanStart(None, scope="agent", agent=name, new_run=True, trainable=False)
    span = open_span(recorder, start, parent=parent)
    result = await span.run(step)
    span.end()
    return result

"""One idiom for a span and its scope: a `Tracer` opens both, a `SpanScope` is both until it ends.

An integration makes one `Tracer`, and opens a `SpanScope` for each thing that its framework does::

    span = TRACER.open(context.recorder, SpanStart(SpanKind.TOOL, "search"))

The scope is current where the integration says so:

- in a block: ``with span: ...`` ends it as well;
- where a hook begins it and another ends it: `SpanScope.activate`, then `SpanScope.end` from any
  task or thread;
- in single steps, as of a stream whose reader drives it: `SpanScope.running`, `run` and `stream`.

Exceptions pass unchanged and end the span as an error. Methods of an open span never raise: what
fails in them is a capture error of the attempt.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

from agl_core import semconv
from agl_core.tracing._guard import report
from agl_core.tracing._recorder import Recorder
from agl_core.tracing._scopes import CURRENT, close_scope, current_scope, inherited, swap_current
from agl_core.tracing._values import text
from agl_core.types import Scope, ScopeKind, SpanKind
from agl_core.types.ids import new_id

UNNAMED: Final = "unnamed agent"
"""Name of the span of an agent that has none."""
HANDOFF: Final = "handoff"
"""Name of a message span by which one agent hands over to another."""

_DONE: Final = object()
_SCOPES: Final[Mapping[SpanKind, ScopeKind]] = {
    SpanKind.AGENT: "agent",
    SpanKind.LLM: "call",
    SpanKind.TOOL: "tool",
    SpanKind.OPERATION: "operation",
    SpanKind.MESSAGE: "operation",
}
_T = TypeVar("_T")


@dataclass(slots=True)  # a frozen one takes five times as long to make
class SpanStart:
    """What a span and its scope begin with."""

    kind: SpanKind | None
    """None for a scope without a span of its own: what is inside hangs under the span around."""
    name: str = ""
    scope: ScopeKind | None = None
    """By default the scope of the span's kind."""
    agent: str | None = None
    """The agent whose span it is: by default that of the scope around, none if empty."""
    agent_run_id: str | None = None
    """By default the run of the scope around, where the agent is the same."""
    new_run: bool = False
    """Begin a new run of the agent inside a scope of the same agent, too."""
    trainable: bool = True
    speaker: str | None = None
    """Who makes the calls inside, if that is not `agent`; in a ``tool`` scope no agent by default."""
    speaker_run_id: str | None = None
    attributes: Mapping[str, Any] | None = None


class SpanScope(Scope):
    """An open span with its scope, made by `Tracer.open`."""

    __slots__ = (
        "_ended",
        "_has_span",
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
        """See `Tracer.open`; `owner` is agent and agent run of the span."""
        kind: ScopeKind = start.scope or _SCOPES[start.kind or SpanKind.OPERATION]
        agent, run_id = self.span_agent, self.span_run_id = owner
        if start.speaker is not None or kind == "tool":
            agent, run_id = start.speaker, start.speaker_run_id
        # A call of Scope's own __init__ takes as long as all of this.
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
        """What two hooks that see the same work both know it by."""
        self.on_end: Callable[[], object] | None = None
        """Called once, when the span ends; it must not raise."""
        self._has_span = start.kind is not None
        self._ended = False
        self.inside: Scope | None = self
        """The scope that is current in the next step."""

    def activate(self) -> Self:
        """Make the scope current in this context, until it ends."""
        swap_current(self)
        return self

    def __enter__(self) -> Self:
        return self.activate()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end(error)

    def running(self) -> _Running:
        """Make the scope current inside the ``with`` block, and the one from before after it.

        What the block leaves open is current again in the next block.
        """
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
        """Yield `items`, each made inside; their end ends the span.

        Args:
            items: The framework's, or those of a user's own class: not all of them can be closed.
            see: Called with each item before it is passed on.
            kind: Class of the items that `see` is called with.
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
        """End the scope alone: what is sent from now on is not inside, and the span stays open."""
        if not self.closed:
            close_scope(self)

    def end(
        self,
        error: BaseException | None = None,
        *,
        failed: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """End scope and span; the first end counts.

        Args:
            error: What was raised inside. A `GeneratorExit`, and what the tracer knows as control
                flow, is no failure.
            failed: What went wrong, where the framework turned the exception into text.
            attributes: Of the span.
        """
        if self._ended:
            return
        self._ended = True
        close_scope(self)
        if self.on_end is not None:
            self.on_end()
        if not self._has_span:
            return
        error = error or self.caught
        try:
            if error is None:
                status = "error" if failed else "ok"
                self.recorder.end(self.span_id, status=status, error=failed, attributes=attributes)
            else:
                control_flow = self.tracer.control_flow()
                self.recorder.end_with(
                    self.span_id, error, control_flow=control_flow, attributes=attributes
                )
        except Exception as problem:  # noqa: BLE001  telemetry never raises into user code
            report(f"a span was not ended: {problem!r}", framework=self.tracer.framework)


class _Running:
    """A class and no generator: it goes around every step of every stream."""

    __slots__ = ("_before", "_span")

    def __init__(self, span: SpanScope) -> None:
        self._span = span
        self._before: Scope | None = None

    def __enter__(self) -> None:
        self._before = swap_current(self._span.inside)

    def __exit__(self, *exception: object) -> None:
        # Not Token.reset: a stream may be closed in another context than it is read in.
        self._span.inside = swap_current(self._before)


class Tracer:
    """Opens the spans of one framework; make one, as a constant of the integration."""

    def __init__(
        self,
        framework: str,
        *,
        control_flow: Callable[[], tuple[type[BaseException], ...]] = tuple,
    ) -> None:
        """For one framework.

        Args:
            framework: The integration's name, an attribute of every span.
            control_flow: Gives the exceptions by which the framework only passes control: what they
                leave has not failed.
        """
        self.framework = framework
        self.control_flow = control_flow

    def open(
        self, recorder: Recorder, start: SpanStart, *, parent: Scope | None = CURRENT
    ) -> SpanScope:
        """Begin a span and its scope, which is current nowhere yet.

        Args:
            recorder: Of the attempt that runs here.
            start: What they begin with.
            parent: The scope around: by default the current one; None for the attempt itself. Where
                it is given, the span belongs by default to the agent of the parent's span, and not
                to the one that speaks in the parent's scope.
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
            except Exception as error:  # noqa: BLE001  telemetry: who speaks is known all the same
                report(f"a span was not recorded: {error!r}", framework=self.framework)
        return SpanScope(self, recorder, start, span_id, outer, (agent, run_id))

    def speaker(self) -> SpanScope | None:
        """The agent's span in which this code runs.

        None where another agent speaks: in tools, in model calls, and in scopes of the user's own.
        """
        scope = current_scope()
        if isinstance(scope, SpanScope) and scope.tracer is self and scope.kind == "agent":
            return scope
        return None

    def innermost(self) -> SpanScope | None:
        """The innermost span of this tracer around this code."""
        scope = current_scope()
        while scope is not None:
            if isinstance(scope, SpanScope) and scope.tracer is self:
                return scope
            scope = scope.parent
        return None

    def agent(
        self, name: str | None, *, run_id: str | None = None, speaker: str | None = None
    ) -> SpanStart:
        """How an agent's turn begins: a new run, unless it continues one.

        Args:
            name: The agent's; one without a name is the agent of the scope around.
            run_id: The run that the turn continues; by default that of the scope around, if it is
                the same agent's.
            speaker: Who makes the calls inside, if that is not the agent.
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
        """How a model call begins, by the agent that speaks here.

        Args:
            model: The name that is asked for; empty where it is unknown.
        """
        attributes = {semconv.GEN_AI_OPERATION_NAME: "chat"}
        if model:
            attributes[semconv.GEN_AI_REQUEST_MODEL] = model
        return self._by_speaker(SpanStart(SpanKind.LLM, model or "model", attributes=attributes))

    def tool(self, name: str, arguments: Any, *, call_id: str | None = None) -> SpanStart:
        """How the use of a tool begins, by the agent that speaks here; see `tool_attributes`."""
        attributes = tool_attributes(name, arguments, call_id=call_id)
        return self._by_speaker(SpanStart(SpanKind.TOOL, name, attributes=attributes))

    def _by_speaker(self, start: SpanStart) -> SpanStart:
        speaker = self.speaker()
        if speaker is not None:
            start.agent, start.agent_run_id = speaker.span_agent, speaker.span_run_id
        return start


def tool_attributes(name: str, arguments: Any, *, call_id: str | None = None) -> dict[str, Any]:
    """Attributes of a tool's span.

    Args:
        name: The tool's.
        arguments: What it is called with.
        call_id: The id under which the model asked for it, if there is one.
    """
    attributes: dict[str, Any] = {
        semconv.GEN_AI_TOOL_NAME: name,
        semconv.GEN_AI_TOOL_ARGUMENTS: arguments,
    }
    if call_id:
        attributes[semconv.GEN_AI_TOOL_CALL_ID] = call_id
    return attributes


def handoff(source: str | None, target: Any, **fields: Any) -> SpanStart:
    """A message span that says which agent hands over to which; `fields` are more of `SpanStart`."""
    attributes = {semconv.AGL_HANDOFF_FROM: source, semconv.AGL_HANDOFF_TO: target}
    attributes.update(fields.pop("attributes", {}))
    return SpanStart(SpanKind.MESSAGE, HANDOFF, attributes=attributes, **fields)


open_span: Final = Tracer("").open
"""Open a span that belongs to no framework; see `Tracer.open`."""


async def run_as(
    recorder: Recorder,
    name: str,
    step: Callable[[], Awaitable[_T]],
    *,
    parent: Scope | None = CURRENT,
) -> _T:
    """Await `step`, whose requests are those of `name`, which is never trained.

    Args:
        recorder: Of the attempt that runs here.
        name: Belongs to the framework, such as ``@summarizer``.
        step: Asks a model.
        parent: As in `Tracer.open`; the requests hang under its span.
    """
    start = SpanStart(None, scope="agent", agent=name, new_run=True, trainable=False)
    span = open_span(recorder, start, parent=parent)
    result = await span.run(step)
    span.end()
    return result

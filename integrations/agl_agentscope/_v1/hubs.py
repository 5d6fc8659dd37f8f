"""Record hubs and the messages that their agents receive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, cast

from agl_agentscope._identity import ByIdentity
from agl_agentscope._spans import FRAMEWORK, TRACER
from agl_agentscope._v1 import messages as said
from agl_core import semconv
from agl_core.tracing import SpanScope, SpanStart, active, current_scope, guarded
from agl_core.types import SpanKind

Live = Callable[[], bool]
Function = Callable[..., Any]
Receivers = Callable[[], Iterable[Any]]
"""Called inside a guard, because it reads a private attribute of the agent."""

HUB: Final = "hub"
"""Name of the span around the messages of a hub."""
BROADCAST: Final = "broadcast"
"""Name of a message's span, which lists its receivers."""
HUB_NAME: Final = "agl.agentscope.hub"
PARTICIPANTS: Final = "agl.agentscope.participants"
"""On a hub's span, with `HUB_NAME`: names of the agents that were in it when it was entered."""


class Hubs:
    """Wraps the methods with which a `MsgHub` is entered, left and broadcasts."""

    def __init__(self) -> None:
        self._open: ByIdentity[list[SpanScope]] = ByIdentity()

    def entering(self, original: Function, live: Live) -> Function:
        async def enter(hub: Any) -> Any:
            if live():
                self._begin(hub)
            try:
                return await original(hub)
            except BaseException as error:
                self._end(hub, error)
                raise

        return enter

    def leaving(self, original: Function, live: Live) -> Function:
        del live  # end an open span even after `detach`

        async def leave(hub: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return await original(hub, *args, **kwargs)
            finally:
                self._end(hub, args[1] if len(args) > 1 else None)

        return leave

    def announcing(self, original: Function, live: Live) -> Function:
        """Wrap a hub's own ``broadcast``."""

        async def broadcast(hub: Any, msg: Any) -> Any:
            if not live() or active() is None:
                return await original(hub, msg)
            return await _delivered(msg, lambda: hub.participants, lambda: original(hub, msg))

        return broadcast

    @guarded(FRAMEWORK)
    def _begin(self, hub: Any) -> None:
        context = active()
        if context is None:
            return
        attributes = {
            HUB_NAME: str(hub.name),
            PARTICIPANTS: said.names(hub.participants),
        }
        around = current_scope()
        start = SpanStart(
            SpanKind.OPERATION,
            HUB,
            agent=around.agent if around is not None else None,
            agent_run_id=around.agent_run_id if around is not None else None,
            attributes=attributes,
        )
        span = TRACER.open(context.recorder, start).activate()
        self._open.get_or_make(hub, list).append(span)

    @guarded(FRAMEWORK)
    def _end(self, hub: Any, error: BaseException | None) -> None:
        context, entered = active(), self._open.get(hub) or []
        # Another rollout may be in the same hub.
        ours = [
            each for each in entered if context is not None and each.recorder is context.recorder
        ]
        if ours:
            entered.remove(ours[-1])
            ours[-1].end(error)


def broadcasting(original: Function, live: Live) -> Function:
    """Wrap the function with which an agent sends its reply to the other agents of its hubs."""

    async def broadcast(agent: Any, msg: Any) -> Any:
        if not live() or active() is None:
            return await original(agent, msg)
        return await _delivered(msg, lambda: _subscribers(agent), lambda: original(agent, msg))

    return broadcast


def _subscribers(agent: Any) -> list[Any]:
    return [each for hub in agent._subscribers.values() for each in hub]  # noqa: SLF001


async def _delivered(msg: Any, receivers: Receivers, step: Callable[[], Awaitable[Any]]) -> Any:
    """Record the messages; model calls of the receivers are not the sender's calls."""
    span = _open_message(msg, receivers)
    if span is None:
        return await step()
    given = await span.run(step)
    span.end()
    return given


@guarded(FRAMEWORK)
def _open_message(msg: Any, receivers: Receivers) -> SpanScope | None:
    context, everyone = active(), said.names(receivers())
    messages = cast("Sequence[Any]", msg if isinstance(msg, list) else [msg])
    if context is None or not everyone or not messages:
        return None
    spans = [
        TRACER.open(context.recorder, _message(each.name, said.received(each.content), everyone))
        for each in messages
    ]
    for span in spans[:-1]:
        span.end()
    return spans[-1]


def _message(sender: str, content: Any, everyone: list[str]) -> SpanStart:
    attributes = {
        semconv.AGL_HANDOFF_FROM: sender,
        semconv.AGL_HANDOFF_TO: everyone,
        semconv.AGL_MESSAGE: {"role": sender, "content": content},
    }
    return SpanStart(SpanKind.MESSAGE, BROADCAST, scope="tool", agent="", attributes=attributes)

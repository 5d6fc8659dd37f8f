"""The stack of open scopes in this context: which one is current, and how one is opened and closed.

A framework may have a context of its own. Its locator says which of its scopes, if any, lies inside
the one that agl-core knows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, NamedTuple

from agl_core.tracing._values import text
from agl_core.types import Scope, ScopeKind

Locator = Callable[[Scope | None], Scope | None]
"""From the scope that was opened here to the innermost one, with the framework's own runs."""
Locators = dict[str, Locator]
"""By integration name."""

CURRENT: Final = Scope(kind="operation", span_id="")
"""Default of a parameter that takes None for no scope: the scope that is current."""


class _Process:
    """What holds where no context variable is set, as in a thread of a subprocess of a rollout."""

    __slots__ = ("locators", "scope")

    def __init__(self) -> None:
        self.locators: Locators | None = None
        self.scope: Scope | None = None


_PROCESS: Final = _Process()
_SCOPE: ContextVar[Scope | None] = ContextVar("agl_scope", default=None)
_LOCATORS: ContextVar[Locators | None] = ContextVar("agl_locators", default=None)
"""Those of the attempt that runs here."""


class Standing(NamedTuple):
    """The scope and the locators of one context."""

    scope: Scope | None
    locators: Locators | None


def stand(standing: Standing) -> Standing:
    """Replace scope and locators of this context; gives those from before."""
    before = Standing(_SCOPE.get(), _LOCATORS.get())
    _SCOPE.set(standing.scope)
    _LOCATORS.set(standing.locators)
    return before


def adopt_scope(scope: Scope | None, locators: Locators | None) -> None:
    """Set what holds in every context of this process that is in no attempt."""
    if _PROCESS.scope is not None:
        # Scopes that were opened inside have made it current where they ended.
        _PROCESS.scope.closed = True
    _PROCESS.scope, _PROCESS.locators = scope, locators


def current_scope() -> Scope | None:
    """The innermost open scope, those of frameworks' runs included."""
    return scope_around("")


def scope_around(framework: str) -> Scope | None:
    """The innermost scope that is known without the locator of `framework`.

    Each scope leads to those around it, whichever integration opened them, so the order of the
    locators does not matter.
    """
    scope, locators = opened_here(), _LOCATORS.get()
    if locators is None:
        locators = _PROCESS.locators
    if locators:
        for name, locate in tuple(locators.items()):
            if name != framework:
                scope = locate(scope)
    return scope


def opened_here() -> Scope | None:
    """The innermost scope opened in this context, without the frameworks' locators.

    Scopes that were closed from another task are passed over.
    """
    scope = _SCOPE.get()
    while scope is not None and scope.closed:
        scope = scope.parent
    if scope is None and _LOCATORS.get() is None:
        return _PROCESS.scope
    return scope


def swap_current(scope: Scope | None) -> Scope | None:
    """Make `scope` current in this context; gives the one that was."""
    before = _SCOPE.get()
    _SCOPE.set(scope)
    return before


def inherited(
    outer: Scope | None,
    kind: ScopeKind,
    span_id: str,
    agent: str | None = None,
    agent_run_id: str | None = None,
    trainable: bool = True,
) -> tuple[str | None, str | None, bool]:
    """Agent, agent run and trainability of a scope inside `outer`.

    They come from `outer` where they are not given; a ``tool`` scope inherits none of them. An
    ``agent`` scope that names another agent than `outer` begins a new agent run, whose id is
    `span_id` if no other is given.
    """
    if agent is not None and type(agent) is not str:
        agent = text(agent)
    if outer is not None and kind != "tool":
        trainable = trainable and outer.trainable
        if agent is None or agent == outer.agent:
            agent = outer.agent
            agent_run_id = agent_run_id or outer.agent_run_id
    if kind == "agent" and agent is not None:
        agent_run_id = agent_run_id or span_id
    return agent, agent_run_id, trainable


def close_scope(scope: Scope) -> None:
    """End a scope; where it, or a scope inside it, is current, its parent becomes current.

    Callable from any task or thread: contexts in which the scope is still current skip it.
    """
    scope.closed = True
    inner = _SCOPE.get()
    while inner is not None:
        if inner is scope:
            _SCOPE.set(scope.parent)
            return
        inner = inner.parent

"""The stack of open scopes of a context: the current one, opening and closing.

A framework may have its own context. Its locator finds the framework's scopes inside the scope that
agl-core knows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, NamedTuple

from agl_core.tracing._values import text
from agl_core.types import Scope, ScopeKind

Locator = Callable[[Scope | None], Scope | None]
"""Returns the innermost scope, including those of the framework's runs, given agl-core's scope."""
Locators = dict[str, Locator]
"""By integration name."""

CURRENT: Final = Scope(kind="operation", span_id="")
"""Default for parameters where None means no scope: the current scope."""


class _Process:
    """Values for code without context variables, as in a thread of a subprocess of a rollout."""

    __slots__ = ("locators", "scope")

    def __init__(self) -> None:
        self.locators: Locators | None = None
        self.scope: Scope | None = None


_PROCESS: Final = _Process()
_SCOPE: ContextVar[Scope | None] = ContextVar("agl_scope", default=None)
_LOCATORS: ContextVar[Locators | None] = ContextVar("agl_locators", default=None)
"""The locators of the current attempt."""


class Standing(NamedTuple):
    """The scope and the locators of one context."""

    scope: Scope | None
    locators: Locators | None


def stand(standing: Standing) -> Standing:
    """Replace the scope and locators of this context; return the previous ones."""
    before = Standing(_SCOPE.get(), _LOCATORS.get())
    _SCOPE.set(standing.scope)
    _LOCATORS.set(standing.locators)
    return before


def adopt_scope(scope: Scope | None, locators: Locators | None) -> None:
    """Set scope and locators for every context of this process that is outside any attempt."""
    if _PROCESS.scope is not None:
        # It may still be current in a context: scopes opened inside it restored it at their end.
        _PROCESS.scope.closed = True
    _PROCESS.scope, _PROCESS.locators = scope, locators


def current_scope() -> Scope | None:
    """Return the innermost open scope, including scopes of frameworks."""
    return scope_around("")


def scope_around(framework: str) -> Scope | None:
    """Return the innermost scope found without the locator of `framework`.

    The order of the locators does not matter, because each scope links to the scopes around it, of
    any integration.
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
    """Return the innermost scope opened in this context, without the frameworks' locators.

    Scopes that another task has closed are skipped.
    """
    scope = _SCOPE.get()
    while scope is not None and scope.closed:
        scope = scope.parent
    if scope is None and _LOCATORS.get() is None:
        return _PROCESS.scope
    return scope


def swap_current(scope: Scope | None) -> Scope | None:
    """Make `scope` current in this context; return the previous one."""
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
    """Return agent, agent run and trainability of a scope inside `outer`.

    Values that are not given come from `outer`, except in a ``tool`` scope. An ``agent`` scope with
    another agent than `outer` begins a new agent run, with `span_id` as its id by default.
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
    """End a scope; if it or a scope inside it is current, its parent becomes current.

    Callable from any task or thread: other contexts in which the scope is current skip it.
    """
    scope.closed = True
    inner = _SCOPE.get()
    while inner is not None:
        if inner is scope:
            _SCOPE.set(scope.parent)
            return
        inner = inner.parent

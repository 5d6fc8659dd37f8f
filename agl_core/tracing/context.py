"""Which attempt runs here, and which agent speaks: two context variables."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from agl_core.clocks import monotonic
from agl_core.errors import ConfigError
from agl_core.tracing.aliases import Aliases
from agl_core.tracing.values import text
from agl_core.types import LLM, Attempt, PromptTemplate, Resources, Rollout, Scope, ScopeKind

if TYPE_CHECKING:
    from agl_core.tracing.recorder import Recorder

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0"})  # noqa: S104
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


Locator = Callable[[Scope | None], Scope | None]
"""From the scope that was opened here to the innermost one, with the framework's own runs."""


@dataclass(slots=True)
class AttemptContext:
    """Everything that code running inside one attempt can ask for."""

    rollout: Rollout
    attempt: Attempt
    llm: LLM
    """Where this attempt's calls go: `base_url` ends in ``/v1``."""
    resources: Resources
    recorder: Recorder
    origins: frozenset[str]
    """``host:port`` of the gateways; only requests to these carry the identity headers."""
    deadline: float
    """On the clock of `time.monotonic`."""
    locators: dict[str, Locator] = field(default_factory=dict[str, "Locator"])
    """By integration name: what `current_scope` asks in frameworks with a context of their own."""
    aliases: Aliases = field(default_factory=Aliases)
    """What `alias` calls the agents of this attempt."""

    def seconds_left(self) -> float:
        """Seconds until the deadline, negative after it."""
        return self.deadline - monotonic()


@dataclass(frozen=True, slots=True)
class Strays:
    """What becomes of model requests from threads without the context of their attempt."""

    origins: frozenset[str]
    """``host:port`` of the gateway, which counts those to it."""
    count: Callable[[str], None]
    """Given the cause of each other one."""


class _Process:
    """The attempt that a whole subprocess belongs to: no context variable reaches every thread."""

    __slots__ = ("context", "scope", "strays")

    def __init__(self) -> None:
        self.context: AttemptContext | None = None
        self.scope: Scope | None = None
        self.strays: Strays | None = None


_PROCESS: Final = _Process()
_ACTIVE: ContextVar[AttemptContext | None] = ContextVar("agl_attempt", default=None)
_SCOPE: ContextVar[Scope | None] = ContextVar("agl_scope", default=None)
_CURRENT: Final = Scope(kind="operation", span_id="")
"""Default of a parameter whose None says something."""


def active() -> AttemptContext | None:
    """The attempt this code runs in; None outside any rollout."""
    return _ACTIVE.get() or _PROCESS.context


def current() -> AttemptContext:
    """The attempt this code runs in.

    Raises:
        ConfigError: the code does not run inside a rollout.
    """
    context = active()
    if context is None:
        raise ConfigError(
            "No rollout is running here: call this from the agent that agl runs, and hand the "
            "context to threads you start (contextvars.copy_context().run or asyncio.to_thread)"
        )
    return context


def resource(name: str) -> LLM | PromptTemplate:
    """One named resource of the version this rollout uses.

    Raises:
        ConfigError: outside a rollout, or the version has no resource of that name.
    """
    resources = current().resources
    try:
        return resources.items[name]
    except KeyError:
        raise ConfigError(
            f"Resources version {resources.version} has no {name!r}; it has "
            f"{sorted(resources.items)}: publish it, or use one of these names"
        ) from None


@contextmanager
def enter(context: AttemptContext) -> Generator[AttemptContext, None, None]:
    """Make `context` the active attempt, with no scope open; both are restored on leaving."""
    before, scope = _ACTIVE.get(), _SCOPE.get()
    _ACTIVE.set(context)
    _SCOPE.set(None)
    try:
        yield context
    finally:
        # Not Token.reset: a generator may be closed in another context than it was begun in.
        _ACTIVE.set(before)
        _SCOPE.set(scope)


def adopt(context: AttemptContext | None, scope: Scope | None = None) -> None:
    """Make every thread and task of this process that is in no attempt belong to `context`."""
    if _PROCESS.scope is not None:
        # Scopes that were opened inside have made it current where they ended.
        _PROCESS.scope.closed = True
    _PROCESS.context, _PROCESS.scope = context, scope


@contextmanager
def counting_strays(strays: Strays) -> Generator[None, None, None]:
    """Count model requests of this process that no attempt is known to have sent."""
    before, _PROCESS.strays = _PROCESS.strays, strays
    try:
        yield
    finally:
        _PROCESS.strays = before


def strays_here() -> Strays | None:
    """Who counts them; None while no attempts are run here."""
    return _PROCESS.strays


def current_scope() -> Scope | None:
    """The innermost open scope, those of frameworks' runs included."""
    return scope_around("")


def scope_around(framework: str) -> Scope | None:
    """The innermost scope that all but `framework` know of: it knows better where its runs stand.

    Each scope leads to those around it, whoever opened them, so the order of asking does not matter.
    """
    scope, context = opened_here(), active()
    if context is not None and context.locators:
        for name, locate in tuple(context.locators.items()):
            if name != framework:
                scope = locate(scope)
    return scope


def opened_here() -> Scope | None:
    """The innermost scope opened in this context, frameworks not asked.

    Scopes that were closed from another task are passed over.
    """
    scope = _SCOPE.get()
    while scope is not None and scope.closed:
        scope = scope.parent
    if scope is None and _ACTIVE.get() is None:
        return _PROCESS.scope
    return scope


def open_scope(
    kind: ScopeKind,
    *,
    span_id: str,
    agent: str | None = None,
    agent_run_id: str | None = None,
    trainable: bool = True,
    parent: Scope | None = _CURRENT,
) -> Scope:
    """Open a scope and make it the current one; see `scope_in`.

    Args:
        kind: See `Scope`.
        span_id: Span that this scope's children hang under.
        agent: Who speaks inside.
        agent_run_id: Which of the agent's runs this is.
        trainable: False to keep the calls inside out of training.
        parent: The enclosing scope; the current one when left out, none when None.
    """
    outer = current_scope() if parent is _CURRENT else parent
    scope = scope_in(outer, kind, span_id, agent, agent_run_id, trainable)
    make_current(scope)
    return scope


def scope_in(
    outer: Scope | None,
    kind: ScopeKind,
    span_id: str,
    agent: str | None = None,
    agent_run_id: str | None = None,
    trainable: bool = True,
) -> Scope:
    """A scope inside `outer`, which is current nowhere yet.

    Agent, agent run and trainability come from `outer` where they are not given; a ``tool`` scope
    inherits none of them. An ``agent`` scope that names another agent than `outer` begins a new
    agent run, whose id is `span_id` if no other is given.
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
    return Scope(kind, span_id, agent, agent_run_id, trainable, outer)


def make_current(scope: Scope) -> None:
    """Open what `scope_in` made."""
    _SCOPE.set(scope)


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


class ScopeFrame:
    """The current scope of a generator's body, which is not that of the code that drives it."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope | None = _CURRENT) -> None:
        """Begin with `scope`; with the one that is current here when it is left out."""
        self._scope = _SCOPE.get() if scope is _CURRENT else scope

    def running(self) -> _Step:
        """Run one step of the body: its own scope is current inside, the driver's afterwards."""
        return _Step(self)

    def enter(self) -> Scope | None:
        """Make the body's scope current; gives the driver's, for `leave`."""
        before = _SCOPE.get()
        _SCOPE.set(self._scope)
        return before

    def leave(self, before: Scope | None) -> None:
        """Keep the scope that the body stopped in, and make the driver's current again."""
        self._scope = _SCOPE.get()
        _SCOPE.set(before)


class _Step:
    """A class and no generator: it goes around every step of every stream."""

    __slots__ = ("_before", "_frame")

    def __init__(self, frame: ScopeFrame) -> None:
        self._frame = frame
        self._before: Scope | None = None

    def __enter__(self) -> None:
        self._before = self._frame.enter()

    def __exit__(self, *exception: object) -> None:
        self._frame.leave(self._before)


def origin_key(host: str, port: int | None, scheme: str) -> str:
    """``host:port`` as it is compared; the scheme's default port is spelled out."""
    port = port or _DEFAULT_PORTS.get(scheme, 0)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def origins_of(url: str) -> frozenset[str]:
    """The ``host:port`` keys under which a gateway is reached, every loopback name included.

    Raises:
        ConfigError: the URL names no host.
    """
    parts = urlsplit(url)
    if not parts.hostname:
        raise ConfigError(f"Gateway address {url!r} names no host: give http://host:port")
    hosts = _LOOPBACK if parts.hostname in _LOOPBACK else {parts.hostname}
    return frozenset(origin_key(host, parts.port, parts.scheme) for host in hosts)

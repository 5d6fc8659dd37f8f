"""Which attempt runs here, and what belongs to it: its settings, aliases and tables."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

from agl_core.clocks import monotonic
from agl_core.errors import ConfigError
from agl_core.tracing._recorder import Recorder
from agl_core.tracing._scopes import Locator, Standing, adopt_scope, stand
from agl_core.types import LLM, Attempt, PromptTemplate, Resources, Rollout, Scope
from agl_core.types.resources import RESERVED_PREFIX

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0"})  # noqa: S104
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Aliases:
    """The aliases of one attempt: each is fixed by its agent's first model call."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        """Start with those that a parent process has set."""
        self._aliases = dict(given or {})
        self._called: set[str] = set()
        self._lock = Lock()

    def names(self) -> dict[str, str]:
        """Agent to its alias."""
        with self._lock:
            return dict(self._aliases)

    def set(self, name: str, alias: str) -> None:
        """Give an agent an alias.

        Raises:
            ConfigError: see `agl_core.tracing.alias`.
        """
        for parameter, value in (("name", name), ("alias", alias)):
            _check(parameter, value)
        with self._lock:
            if name in self._called and self._aliases.get(name) != alias:
                had = self._aliases.get(name)
                raise ConfigError(
                    f"agl.alias({name!r}, {alias!r}) comes after the first model call of {name!r} "
                    f"in this attempt, which was made "
                    + (f"under the alias {had!r}" if had else "without an alias")
                    + ": set the alias before the agent's first call"
                )
            self._aliases[name] = alias

    def at_call(self, name: str) -> str:
        """The alias under which an agent's call leaves, empty without one; fixed from now on."""
        with self._lock:
            self._called.add(name)
            return self._aliases.get(name, "")


def _check(parameter: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"agl.alias got {parameter}={value!r}: give a name as text")
    if value.startswith(RESERVED_PREFIX):
        raise ConfigError(
            f"agl.alias got {parameter}={value!r}: names that begin with {RESERVED_PREFIX!r} are "
            f"the framework's own, give another name"
        )


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

    __slots__ = ("context", "strays")

    def __init__(self) -> None:
        self.context: AttemptContext | None = None
        self.strays: Strays | None = None


_PROCESS: Final = _Process()
_ACTIVE: ContextVar[AttemptContext | None] = ContextVar("agl_attempt", default=None)


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
    before, standing = _ACTIVE.get(), stand(Standing(None, context.locators))
    _ACTIVE.set(context)
    try:
        yield context
    finally:
        # Not Token.reset: a generator may be closed in another context than it was begun in.
        _ACTIVE.set(before)
        stand(standing)


def adopt(context: AttemptContext | None, scope: Scope | None = None) -> None:
    """Make every thread and task of this process that is in no attempt belong to `context`."""
    _PROCESS.context = context
    adopt_scope(scope, context.locators if context is not None else None)


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


class Table(Protocol):
    """What is open in one attempt; also the attempt's locator, asked for the innermost scope."""

    def __call__(self, opened: Scope | None, /) -> Scope | None: ...

    def __contains__(self, key: Any, /) -> bool:
        """Whether it knows this id of the framework's."""
        ...


_T = TypeVar("_T", bound=Table)


class Tables(Generic[_T]):
    """One table for each attempt, however many hooks of the framework report what happens in it.

    A table lives as long as its attempt: one that ends early leaves nothing behind.
    """

    def __init__(self, framework: str, make: Callable[[Recorder], _T]) -> None:
        """For one framework; make one, as a constant of the integration.

        Args:
            framework: The integration's name.
            make: Makes the table of an attempt with this recorder.
        """
        self._framework = framework
        self._make = make
        self._all: WeakSet[_T] = WeakSet()
        self._lock = Lock()

    def of(self, context: AttemptContext) -> _T:
        """The attempt's table, made and entered as the attempt's locator on first use."""
        table: Any = context.locators.get(self._framework)
        if table is None:
            table = context.locators.setdefault(self._framework, self._make(context.recorder))
            with self._lock:
                self._all.add(table)
        return table

    def here(self) -> _T | None:
        """The table of the attempt that this code runs in, where it has one yet."""
        context = active()
        table: Any = None if context is None else context.locators.get(self._framework)
        return table

    def holding(self, key: Any) -> _T | None:
        """The table that knows an id: this attempt's, else any.

        Frameworks call some hooks elsewhere than where the work began.
        """
        table = self.here()
        if table is not None and key in table:
            return table
        with self._lock:
            tables = [*self._all]
        return next((each for each in tables if key in each), None)

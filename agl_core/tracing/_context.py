"""The current attempt with its settings, aliases and tables."""

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
from agl_core.types.rollout import RESERVED_PREFIX

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0"})  # noqa: S104
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Aliases:
    """The aliases of one attempt; an agent's first model call fixes its alias."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        """Start with the aliases that a parent process has set."""
        self._aliases = dict(given or {})
        self._called: set[str] = set()
        self._lock = Lock()

    def names(self) -> dict[str, str]:
        """Return aliases by agent."""
        with self._lock:
            return dict(self._aliases)

    def set(self, name: str, alias: str) -> None:
        """Set an agent's alias.

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
        """Return the alias for an agent's call, empty without one, and fix it from now on."""
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
    """The attempt, its resources and its recorder, for code that runs inside the attempt."""

    rollout: Rollout
    attempt: Attempt
    llm: LLM
    """The endpoint of this attempt's calls; `base_url` ends in ``/v1``."""
    resources: Resources
    recorder: Recorder
    origins: frozenset[str]
    """``host:port`` of the gateways; only requests to these get the identity headers."""
    deadline: float
    """On the clock of `time.monotonic`."""
    locators: dict[str, Locator] = field(default_factory=dict[str, "Locator"])
    """By integration name, for frameworks with their own context; `current_scope` calls them."""
    aliases: Aliases = field(default_factory=Aliases)
    """The aliases that `alias` has set in this attempt."""

    def seconds_left(self) -> float:
        """Return the seconds until the deadline, negative after it."""
        return self.deadline - monotonic()


@dataclass(frozen=True, slots=True)
class Strays:
    """The counting of model requests from threads without the context of their attempt."""

    origins: frozenset[str]
    """``host:port`` of the gateway, which itself counts the requests to it."""
    count: Callable[[str], None]
    """Called with the cause of each request to another address."""


class _Process:
    """The attempt of a whole subprocess, as context variables do not reach every thread."""

    __slots__ = ("context", "strays")

    def __init__(self) -> None:
        self.context: AttemptContext | None = None
        self.strays: Strays | None = None


_PROCESS: Final = _Process()
_ACTIVE: ContextVar[AttemptContext | None] = ContextVar("agl_attempt", default=None)


def active() -> AttemptContext | None:
    """Return the attempt in which this code runs; None outside any rollout."""
    return _ACTIVE.get() or _PROCESS.context


def current() -> AttemptContext:
    """Return the attempt in which this code runs.

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
    """Return a named resource from the version that this rollout uses.

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
    """Make `context` the active attempt, with no scope open; restore the previous ones at exit."""
    before, standing = _ACTIVE.get(), stand(Standing(None, context.locators))
    _ACTIVE.set(context)
    try:
        yield context
    finally:
        # Not Token.reset, as a generator may be closed in another context than its start's.
        _ACTIVE.set(before)
        stand(standing)


def adopt(context: AttemptContext | None, scope: Scope | None = None) -> None:
    """Make `context` the attempt of every thread and task of this process that has none."""
    _PROCESS.context = context
    adopt_scope(scope, context.locators if context is not None else None)


@contextmanager
def counting_strays(strays: Strays) -> Generator[None, None, None]:
    """Count model requests of this process from code without an attempt."""
    before, _PROCESS.strays = _PROCESS.strays, strays
    try:
        yield
    finally:
        _PROCESS.strays = before


def strays_here() -> Strays | None:
    """Return the settings of `counting_strays`; None if this process runs no attempts."""
    return _PROCESS.strays


def origin_key(host: str, port: int | None, scheme: str) -> str:
    """Return ``host:port`` for comparison, with the scheme's default port filled in."""
    port = port or _DEFAULT_PORTS.get(scheme, 0)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def origins_of(url: str) -> frozenset[str]:
    """Return the ``host:port`` keys of a gateway's address, including every loopback name.

    Raises:
        ConfigError: the URL names no host.
    """
    parts = urlsplit(url)
    if not parts.hostname:
        raise ConfigError(f"Gateway address {url!r} names no host: give http://host:port")
    hosts = _LOOPBACK if parts.hostname in _LOOPBACK else {parts.hostname}
    return frozenset(origin_key(host, parts.port, parts.scheme) for host in hosts)


class Table(Protocol):
    """The open spans of one attempt; it is also the attempt's locator of the innermost scope."""

    def __call__(self, opened: Scope | None, /) -> Scope | None: ...

    def __contains__(self, key: Any, /) -> bool:
        """Return whether the table has this id of the framework."""
        ...


_T = TypeVar("_T", bound=Table)


class Tables(Generic[_T]):
    """One table per attempt, which all hooks of a framework share.

    A table exists as long as its attempt, even if the attempt ends early. An integration makes one
    `Tables` as a constant.
    """

    def __init__(self, framework: str, make: Callable[[Recorder], _T]) -> None:
        """Set the framework.

        Args:
            framework: The integration's name.
            make: Makes the table of an attempt from its recorder.
        """
        self._framework = framework
        self._make = make
        self._all: WeakSet[_T] = WeakSet()
        self._lock = Lock()

    def of(self, context: AttemptContext) -> _T:
        """Return the attempt's table; the first use makes it and adds it to the locators."""
        table: Any = context.locators.get(self._framework)
        if table is None:
            table = context.locators.setdefault(self._framework, self._make(context.recorder))
            with self._lock:
                self._all.add(table)
        return table

    def here(self) -> _T | None:
        """Return the current attempt's table, if it has one yet."""
        context = active()
        table: Any = None if context is None else context.locators.get(self._framework)
        return table

    def holding(self, key: Any) -> _T | None:
        """Return the table that has an id: the current attempt's, else any.

        Frameworks call some hooks in another context than the one in which the work began.
        """
        table = self.here()
        if table is not None and key in table:
            return table
        with self._lock:
            tables = [*self._all]
        return next((each for each in tables if key in each), None)

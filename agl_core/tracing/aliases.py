"""What an attempt's agents are called for selection, policies and reports."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

from agl_core.errors import ConfigError
from agl_core.types.resources import RESERVED_PREFIX


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

"""Named objects that plugins register, imported when they are chosen."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from agl_core.errors import ConfigError, MissingExtraError, PluginConflictError, PluginError
from agl_core.plugins.requirements import (
    is_installed,
    provides,
    requirement_text,
    requirements,
    unmet,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

Kind = Literal[
    "integrations",
    "stores",
    "layers",
    "adapters",
    "rewards",
    "algorithms",
    "optimizers",
    "tuners",
    "losses",
    "engines",
    "models",
    "tasks",
    "metrics",
    "diagnoses",
    "filters",
    "trackers",
    "observers",
    "checks",
    "routes",
    "dialects",
    "rewriters",
    "admissions",
    "gateways",
    "displays",
    "exporters",
    "panels",
    "commands",
]
"""Kind of a registered object: the last word of every ``agl_register_*`` hook."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""All kinds, in the order in which they are listed."""

_SINGULAR: Final[Mapping[Kind, str]] = {"losses": "loss", "diagnoses": "diagnosis"}

CORE: Final = "agl-core"
"""The distribution whose extras `Registration.extra` names."""

BUILTIN: Final = "builtin"
"""Plugin name of agl-core's registrations; no other plugin may use their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One registered object: its import path and its requirements."""

    name: str
    target: str
    """``module:attribute``."""
    plugin: str
    distribution: str | None = None
    """Distribution that ships the plugin; None for a local file."""
    extra: str | None = None
    config: type[BaseModel] | str | None = None
    summary: str = ""
    required: bool = False
    """Whether no run starts without it."""


class Registry:
    """The registrations of one kind, by name.

    Two plugins may register the same name if it is not chosen, so that the order of loading does
    not matter. Names of built-ins cannot be registered.
    """

    def __init__(self, kind: Kind, *, problems: Mapping[str, PluginError]) -> None:
        """Create an empty registry.

        Args:
            kind: Kind of the objects.
            problems: Broken plugins by name, with the reason; only read.
        """
        self.kind: Kind = kind
        self._problems = problems
        self._entries: dict[str, list[Registration]] = {}

    def add(self, registration: Registration) -> None:
        """Add a registration.

        Raises:
            PluginConflictError: the plugin registers the name twice, or it is a built-in's.
            PluginError: the target does not have the form ``module:attribute``.
        """
        module, _, attribute = registration.target.partition(":")
        if not (module and attribute):
            raise PluginError(
                f"Plugin {registration.plugin!r} registers {registration.name!r} with the target "
                f"{registration.target!r}: write 'module:attribute'"
            )
        entries = self._entries.setdefault(registration.name, [])
        for other in entries:
            if other.plugin in (registration.plugin, BUILTIN):
                raise _conflict(self.kind, [other, registration])
        entries.append(registration)

    def names(self) -> list[str]:
        """Return the names that plugins which are not broken have registered, sorted."""
        return sorted(name for name in self._entries if self._usable(name))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self._usable(name))

    def registrations(self, plugin: str | None = None) -> list[Registration]:
        """Return all registrations, or one plugin's, by name."""
        return [
            entry
            for name in sorted(self._entries)
            for entry in self._entries[name]
            if plugin in (None, entry.plugin)
        ]

    def get(self, name: str) -> Registration:
        """Return the registration with a name.

        Raises:
            ConfigError: no plugin registers it; the message lists the names.
            PluginError: it belongs to a broken plugin.
            PluginConflictError: several plugins register it.
        """
        usable = self._usable(name)
        if len(usable) > 1:
            raise _conflict(self.kind, usable)
        if usable:
            return usable[0]
        owners = [entry.plugin for entry in self._entries.get(name, [])] or [name]
        for owner in owners:
            if owner in self._problems:
                problem = self._problems[owner]
                raise PluginError(f"{self._noun} {name!r} cannot be used: {problem}") from problem
        raise self.unknown(name, self.names())

    def resolve(self, name: str) -> Any:
        """Import and return the object with a name.

        Raises:
            MissingExtraError: its framework is not installed.
            PluginError: importing it failed for another reason; or as for `get`.
            ConfigError: as for `get`.
        """
        registration = self.get(name)
        return _import_attribute(registration, registration.target)

    def create(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Resolve `name` and call it.

        Raises:
            MissingExtraError: the framework is not installed, found on import or during the call.
            PluginError: as for `resolve`.
            ConfigError: as for `get`, or raised by the factory.
        """
        factory = self.resolve(name)
        try:
            return factory(*args, **kwargs)
        except PluginError:
            raise
        except ImportError as error:
            raise _import_failure(self.get(name), error) from error

    def options_model(self, name: str) -> type[BaseModel] | None:
        """Return the pydantic model of the options of `name`; None if it has no options.

        Raises:
            MissingExtraError, PluginError, ConfigError: as for `resolve`.
        """
        registration = self.get(name)
        if isinstance(registration.config, str):
            return _import_attribute(registration, registration.config)
        return registration.config

    @property
    def _noun(self) -> str:
        return _SINGULAR.get(self.kind, self.kind.removesuffix("s")).capitalize()

    def _usable(self, name: str) -> list[Registration]:
        return [e for e in self._entries.get(name, []) if e.plugin not in self._problems]

    def unknown(self, name: str, known: Sequence[str]) -> ConfigError:
        """Return the error for a name that is not registered, with similar and known names."""
        near = get_close_matches(name, known, n=1)
        parts = [f"Unknown {self._noun.lower()} {name!r}"]
        if near:
            parts.append(f"did you mean {near[0]!r}?")
        parts.append(f"known: {', '.join(known) or 'none'}")
        if self._problems:
            parts.append(f"broken plugins: {', '.join(sorted(self._problems))} (see `agl plugins`)")
        return ConfigError("; ".join(parts))


def require_extra(registration: Registration) -> None:
    """Check that all requirements of an extra are installed, in any version.

    Raises:
        MissingExtraError: a requirement is missing; the message names all missing ones.
    """
    if registration.extra is None:
        return
    absent = [each for each in requirements(CORE, registration.extra) if not is_installed(each)]
    if absent:
        needs = ", ".join(map(requirement_text, absent))
        raise MissingExtraError(registration.name, needs=needs, extra=registration.extra)


def missing_extra(registration: Registration, error: ImportError) -> MissingExtraError | None:
    """Return the error for a failed import while the target ran, if a requirement is missing."""
    if isinstance(error, MissingExtraError):
        return error
    failure = _import_failure(registration, error)
    return failure if isinstance(failure, MissingExtraError) else None


def unmet_extra(registration: Registration) -> list[str]:
    """Return the requirements of the registration's extra that are not installed."""
    if registration.extra is None:
        return []
    return [requirement_text(requirement) for requirement in unmet(CORE, registration.extra)]


def _conflict(kind: Kind, entries: list[Registration]) -> PluginConflictError:
    owners = sorted({f"{e.plugin!r} ({e.target})" for e in entries})
    rivals = sorted({e.plugin for e in entries if e.plugin != BUILTIN})
    fix = f"disable one: AGL_DISABLE_PLUGINS={rivals[0]}" if len(owners) > 1 else "rename one"
    return PluginConflictError(
        f"The name {entries[0].name!r} is registered twice in {kind}, by {' and '.join(owners)}: "
        f"{fix}"
    )


def _import_attribute(registration: Registration, target: str) -> Any:
    module_name, _, attribute = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ImportError as error:
        raise _import_failure(registration, error) from error
    except Exception as error:  # a plugin's module may raise anything; the error names the plugin
        raise PluginError(
            f"Plugin {registration.plugin!r}: {target!r}, registered as {registration.name!r}, "
            f"cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return found


def _import_failure(registration: Registration, error: ImportError) -> PluginError:
    """Return the error of a failed import: a missing framework or a broken plugin."""
    module = (error.name or "").partition(".")[0]
    distribution = CORE if registration.extra else registration.distribution
    if distribution is not None:
        lacking = unmet(distribution, registration.extra)
        needs = [r for r in lacking if provides(r, module)] or lacking
        if needs:
            text = (
                ", ".join(map(requirement_text, needs))
                if registration.extra
                else requirement_text(needs[0])
            )
            return MissingExtraError(registration.name, needs=text, extra=registration.extra)
    own = registration.target.partition(":")[0].partition(".")[0]
    absent = isinstance(error, ModuleNotFoundError) and module not in ("", own)
    if absent and importlib.util.find_spec(module) is None:
        declared = requirements(distribution, registration.extra) if distribution else []
        needs_text = next((requirement_text(r) for r in declared if provides(r, module)), module)
        return MissingExtraError(registration.name, needs=needs_text, extra=registration.extra)
    return PluginError(
        f"Plugin {registration.plugin!r}: {registration.target!r}, registered as "
        f"{registration.name!r}, cannot be imported: {error}"
    )

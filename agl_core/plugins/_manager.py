"""Loading plugins, each isolated from the others, and calling their hooks."""

from __future__ import annotations

import inspect
import logging
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pluggy
from packaging.utils import canonicalize_name

from agl_core.errors import PluginConflictError, PluginError, pip_line
from agl_core.plugins._specs import PROJECT, ObserveSpecs, RegisterSpecs
from agl_core.plugins.registry import (
    BUILTIN,
    CORE,
    KINDS,
    Kind,
    Registration,
    Registry,
    unmet_extra,
)
from agl_core.plugins.requirements import own_version

if TYPE_CHECKING:
    from pydantic import BaseModel

    from agl_core.interfaces import Register


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A plugin's name and its distribution, if any."""

    name: str
    distribution: str | None = None
    version: str = ""


def installed() -> dict[str, list[metadata.EntryPoint]]:
    """Return the entry points of group ``agl_core`` by name, in name order.

    agl-core's plugins have precedence for their names; other plugins may have the same name.
    """
    by_name: dict[str, list[metadata.EntryPoint]] = {}
    for entry in sorted(metadata.entry_points(group=PROJECT), key=lambda entry: entry.name):
        by_name.setdefault(entry.name, []).append(entry)
    for name, entries in by_name.items():
        own = [entry for entry in entries if canonicalize_name(_distribution(entry)) == CORE]
        by_name[name] = own or entries
    return by_name


def source_of(entry: metadata.EntryPoint) -> Source:
    """Return the distribution of an entry point, with its version."""
    if entry.dist is None:
        return Source(name=entry.name)
    return Source(name=entry.name, distribution=entry.dist.name, version=entry.dist.version)


def load_entry_point(entries: Sequence[metadata.EntryPoint]) -> object:
    """Import the plugin with a name; a class is instantiated.

    Raises:
        PluginConflictError: several distributions have a plugin with the name.
        BaseException: an error of the import.
    """
    if len(entries) > 1:
        rivals = sorted(_distribution(entry) for entry in entries)
        raise PluginConflictError(
            f"distributions {rivals} all ship a plugin named {entries[0].name!r}: "
            f"uninstall all but one"
        )
    plugin: Any = entries[0].load()
    return plugin() if inspect.isclass(plugin) else plugin


def _distribution(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist else ""


def hook_manager() -> pluggy.PluginManager:
    """Return a new pluggy manager with agl-core's hooks."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(RegisterSpecs)
    manager.add_hookspecs(ObserveSpecs)
    return manager


def hook_names() -> list[str]:
    """Return the names of all hooks."""
    return sorted(
        name for specs in (RegisterSpecs, ObserveSpecs) for name in vars(specs) if name[0] != "_"
    )


def check_hooks(manager: pluggy.PluginManager, name: str) -> None:
    """Check that a registered plugin implements existing hooks in a supported way.

    Raises:
        PluginError: an unknown hook; a wrapper, which could change arguments; a coroutine
            function, which would never run.
    """
    for caller in manager.get_hookcallers(manager.get_plugin(name)) or []:
        if not caller.has_spec():
            near = get_close_matches(caller.name, hook_names(), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise PluginError(f"there is no hook {caller.name!r}{hint}")
        for implementation in caller.get_hookimpls():
            if implementation.plugin_name == name:
                _check_implementation(caller.name, implementation)


def _check_implementation(hook: str, implementation: pluggy.HookImpl) -> None:
    if implementation.hookwrapper or implementation.wrapper:
        raise PluginError(f"{hook} is implemented as a wrapper: hooks observe, drop `wrapper=True`")
    if inspect.iscoroutinefunction(implementation.function):
        raise PluginError(f"{hook} is implemented with `async def`: write a plain function")


PluginState = Literal["ok", "broken", "missing extra", "disabled"]
"""State of a plugin, as ``agl plugins`` prints it."""

_DISABLE = "AGL_DISABLE_PLUGINS"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """One row of ``agl plugins``."""

    name: str
    state: PluginState
    distribution: str = ""
    version: str = ""
    registers: Mapping[Kind, tuple[str, ...]] = field(default_factory=dict[Kind, tuple[str, ...]])
    observes: tuple[str, ...] = ()
    """Names of the observe hooks that it implements."""
    detail: str = ""
    """Why it is not ``ok``, in one line."""
    traceback: str = ""
    """Traceback of a broken plugin."""


class PluginManager:
    """The plugins of one run, each loaded once and isolated from the others.

    A broken plugin is recorded and listed by `plugins`; its error is raised only if one of its
    objects is chosen. Plugins in ``AGL_DISABLE_PLUGINS`` (comma-separated) are not loaded.
    """

    def __init__(self, *, environ: Mapping[str, str] = os.environ) -> None:
        listed = environ.get(_DISABLE, "").split(",")
        self._disabled = {name.strip() for name in listed if name.strip()}
        self._sources: dict[str, Source] = {}
        self._problems: dict[str, PluginError] = {}
        self._loading: Source | None = None
        self._registries: dict[Kind, Registry] = {
            kind: Registry(kind, problems=self._problems) for kind in KINDS
        }
        self._pluggy = hook_manager()
        for kind in KINDS:
            hook: pluggy.HookCaller = getattr(self._pluggy.hook, f"agl_register_{kind}")
            hook.call_historic(kwargs={"register": self._registrar(kind)})

    def registry(self, kind: Kind) -> Registry:
        return self._registries[kind]

    def load_builtin(self, plugin: object) -> None:
        """Load agl-core's registrations, whose names no other plugin may use.

        Raises:
            PluginError: they are broken, which is always fatal.
        """
        self.register(plugin, Source(name=BUILTIN, distribution=CORE, version=own_version()))
        if BUILTIN in self._problems:
            raise self._problems[BUILTIN]

    def load_installed(self) -> None:
        """Load every installed plugin that is not disabled, in name order, each isolated."""
        entry_points = installed()
        for name in sorted(self._disabled - entry_points.keys()):
            _log.warning("%s names %r, but no such plugin is installed", _DISABLE, name)
        for name, entries in entry_points.items():
            source = source_of(entries[0])
            if name in self._disabled:
                self._sources[name] = source
                continue
            try:
                plugin = load_entry_point(entries)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - isolation: the others load
                self._sources[name] = source
                self._record(name, error)
            else:
                self.register(plugin, source)

    def load_file(self, path: str | Path) -> None:
        """Load a local Python file as a plugin, named after its stem.

        Raises:
            PluginError: the file does not exist or is broken, which is fatal, as the user named it.
        """
        from agl_core.config.references import import_file  # noqa: PLC0415 - pydantic, if asked for

        file = Path(path).expanduser().resolve()
        source = Source(name=file.stem)
        self._claim(source)
        try:
            plugin = import_file(file, what="Local plugin")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the file may do anything
            self._record(source.name, error)
        else:
            del self._sources[source.name]
            self.register(plugin, source)
        if source.name in self._problems:
            raise self._problems[source.name]

    def register(self, plugin: object, source: Source) -> None:
        """Add a module or object with hook implementations; record a broken one.

        Raises:
            PluginConflictError: a plugin of that name is already loaded.
        """
        self._claim(source)
        self._loading = source
        try:
            self._pluggy.register(plugin, name=source.name)
            check_hooks(self._pluggy, source.name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - isolation: the others load
            self._record(source.name, error)
            if self._pluggy.has_plugin(source.name):
                self._pluggy.unregister(name=source.name)
        finally:
            self._loading = None

    def observe(self, hook: str, **kwargs: Any) -> None:
        """Call every implementation of an observe hook, in the order the plugins were loaded.

        Raises:
            PluginError: an observer raised; the message names plugin and hook. Later observers are
                not called, because the run stops.
        """
        caller: pluggy.HookCaller = getattr(self._pluggy.hook, hook)
        for implementation in caller.get_hookimpls():
            arguments = [kwargs[name] for name in implementation.argnames]
            try:
                implementation.function(*arguments)
            except Exception as error:  # any error of an observer is the plugin's
                raise PluginError(
                    f"Plugin {implementation.plugin_name!r} raised in {hook}: "
                    f"{type(error).__name__}: {error}; fix it or set "
                    f"{_DISABLE}={implementation.plugin_name}"
                ) from error

    def plugins(self) -> list[PluginInfo]:
        """Return all loaded, broken and disabled plugins: built-ins first, then by name."""
        rows = [self._info(source) for source in self._sources.values()]
        return sorted(rows, key=lambda row: (row.name != BUILTIN, row.name))

    def _claim(self, source: Source) -> None:
        if source.name in self._sources:
            raise PluginConflictError(
                f"A plugin named {source.name!r} is already loaded: give the second another name"
            )
        self._sources[source.name] = source

    def _registrar(self, kind: Kind) -> Register:
        def register(
            name: str,
            target: str,
            *,
            extra: str | None = None,
            config: type[BaseModel] | str | None = None,
            summary: str = "",
            required: bool = False,
        ) -> None:
            source = self._loading
            if source is None:
                raise PluginError(
                    f"{name!r} was registered after loading: call `register` only while "
                    f"agl_register_{kind} runs"
                )
            registration = Registration(
                name=name,
                target=target,
                plugin=source.name,
                distribution=source.distribution,
                extra=extra,
                config=config,
                summary=summary,
                required=required,
            )
            self._registries[kind].add(registration)

        return register

    def _record(self, name: str, error: BaseException) -> None:
        problem = PluginError(f"Plugin {name!r} is broken: {type(error).__name__}: {error}")
        problem.__cause__ = error
        self._problems[name] = problem
        _log.warning("%s (`agl plugins -v` shows the traceback)", problem)

    def _info(self, source: Source) -> PluginInfo:
        state, detail = self._state(source.name)
        offers: dict[Kind, tuple[str, ...]] = {}
        for kind in KINDS:
            names = tuple(r.name for r in self._registries[kind].registrations(source.name))
            if names:
                offers[kind] = names
        plugin = self._pluggy.get_plugin(source.name)
        callers = (self._pluggy.get_hookcallers(plugin) or []) if plugin is not None else []
        hooks = sorted(caller.name for caller in callers)
        problem = self._problems.get(source.name)
        return PluginInfo(
            name=source.name,
            state=state,
            distribution=source.distribution or "",
            version=source.version,
            registers=offers,
            observes=tuple(hook for hook in hooks if not hook.startswith("agl_register_")),
            detail=detail,
            traceback="".join(traceback.format_exception(problem)) if problem else "",
        )

    def _state(self, name: str) -> tuple[PluginState, str]:
        if name in self._problems:
            return "broken", str(self._problems[name])
        if name in self._disabled and not self._pluggy.has_plugin(name):
            return "disabled", f"named in {_DISABLE}"
        for kind in KINDS:
            for registration in self._registries[kind].registrations(name):
                needs = unmet_extra(registration)
                if needs:
                    pip = pip_line(registration.extra or "")
                    return "missing extra", f"{registration.name} needs {', '.join(needs)}: {pip}"
        return "ok", ""

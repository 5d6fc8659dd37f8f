"""The hook caller: which hooks exist, and what an implementation may look like."""

from __future__ import annotations

import inspect
from difflib import get_close_matches

import pluggy

from agl_core.errors import PluginError
from agl_core.plugins.specs import PROJECT, ObserveSpecs, RegisterSpecs


def hook_manager() -> pluggy.PluginManager:
    """A fresh pluggy manager that knows agl-core's hooks."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(RegisterSpecs)
    manager.add_hookspecs(ObserveSpecs)
    return manager


def hook_names() -> list[str]:
    """Every hook there is."""
    return sorted(
        name for specs in (RegisterSpecs, ObserveSpecs) for name in vars(specs) if name[0] != "_"
    )


def check_hooks(manager: pluggy.PluginManager, name: str) -> None:
    """Refuse a registered plugin that implements hooks which do not exist or would not work.

    Raises:
        PluginError: an unknown hook; a wrapper, which could change what it sees; a coroutine
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
